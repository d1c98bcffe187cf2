// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/plugins/topologyscore"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

func TestMain(m *testing.M) {
	metrics.Register()
	m.Run()
}

// world is a scheduler framework with our plugins on a fake API server.
type world struct {
	t         testing.TB
	ctx       context.Context
	client    *fake.Clientset
	framework framework.Framework
	plugin    *Plugin
	manager   *dynamicresources.DefaultDRAManager
	claims    cache.SharedIndexInformer
	recorder  *events.FakeRecorder
	nodes     []fwk.NodeInfo
}

// worldConfig is what a world starts with.
type worldConfig struct {
	args    runtime.Object
	options Options
	objects []runtime.Object
}

// newWorld starts a world; it stops with the test.
func newWorld(t testing.TB, c worldConfig) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	w := &world{t: t, ctx: ctx, client: newClient(t, c.objects), recorder: events.NewFakeRecorder(100)}
	factory := informers.NewSharedInformerFactory(w.client, 0)
	tracker, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		SliceInformer: factory.Resource().V1().ResourceSlices(),
		TaintInformer: factory.Resource().V1().DeviceTaintRules(),
		KubeClient:    w.client,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.claims = factory.Resource().V1().ResourceClaims().Informer()
	claimCache := assumecache.NewAssumeCache(klog.FromContext(ctx), w.claims, "claim", "", nil)
	synced := []cache.DoneChecker{
		tracker.HasSyncedChecker(), claimCache.AddEventHandler(cache.ResourceEventHandlerFuncs{}).HasSyncedChecker(),
	}
	w.manager = dynamicresources.NewDRAManager(ctx, claimCache, tracker, factory)
	if classes, ok := w.manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache); ok {
		registration, err := factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(classes)
		if err != nil {
			t.Fatal(err)
		}
		synced = append(synced, registration.HasSyncedChecker())
	}
	var nodes []*v1.Node
	for _, object := range c.objects {
		if node, ok := object.(*v1.Node); ok {
			nodes = append(nodes, node)
			info := framework.NewNodeInfo()
			info.SetNode(node)
			w.nodes = append(w.nodes, info)
		}
	}
	w.framework = w.newFramework(factory, nodes, c)
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		frameworkruntime.WaitForShutdown(w.framework)
		factory.Shutdown()
	})
	factory.WaitForCacheSync(ctx.Done())
	if !cache.WaitFor(ctx, "event handlers", synced...) {
		t.Fatal("informers did not sync")
	}
	return w
}

// newClient makes a fake API server that numbers the versions of objects, by which
// the scheduler tells newer from older.
func newClient(t testing.TB, objects []runtime.Object) *fake.Clientset {
	t.Helper()
	var version atomic.Int64
	number := func(object runtime.Object) {
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Error(err)
			return
		}
		accessor.SetResourceVersion(strconv.FormatInt(version.Add(1), 10))
	}
	for i := range objects {
		objects[i] = objects[i].DeepCopyObject()
		number(objects[i])
	}
	client := fake.NewClientset(objects...)
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// The tracker stores the object of the action itself.
		switch action := action.(type) {
		case clienttesting.CreateActionImpl:
			number(action.Object)
		case clienttesting.UpdateActionImpl:
			number(action.Object)
		}
		return false, nil, nil
	})
	return client
}

// newFramework makes a profile of our plugins and what no profile can lack.
func (w *world) newFramework(factory informers.SharedInformerFactory, nodes []*v1.Node, c worldConfig) framework.Framework {
	w.t.Helper()
	factoryOfPlugin := func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := NewFactory(c.options)(ctx, obj, handle)
		w.plugin, _ = plugin.(*Plugin)
		return plugin, err
	}
	registry := frameworkruntime.Registry{
		Name: factoryOfPlugin, topologyscore.Name: topologyscore.New,
		queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New,
	}
	profile := &config.KubeSchedulerProfile{SchedulerName: api.SchedulerName, Plugins: &config.Plugins{
		MultiPoint: config.PluginSet{Enabled: []config.Plugin{
			{Name: queuesort.Name}, {Name: defaultbinder.Name}, {Name: Name, Weight: 2}, {Name: topologyscore.Name, Weight: 50},
		}},
	}}
	if c.args == nil {
		// What is tested is the choice, not its speed on a busy machine.
		c.args = &api.TopologyDynamicResourcesArgs{PlanBudget: &metav1.Duration{Duration: api.MaxPlanBudget}}
	}
	profile.PluginConfig = []config.PluginConfig{{Name: Name, Args: c.args}}
	fw, err := frameworkruntime.NewFramework(w.ctx, registry, profile,
		frameworkruntime.WithClientSet(w.client), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithEventRecorder(w.recorder), frameworkruntime.WithSharedDRAManager(w.manager),
		frameworkruntime.WithSnapshotSharedLister(internalcache.NewSnapshot(nil, nodes)),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	return fw
}

// outcome is what became of one pod.
type outcome struct {
	// node is empty when the pod does not fit.
	node string
	// devices are "claim/request=device", or "request=device" for the claim of
	// extended resources, sorted.
	devices []string
	// reasons by node that did not pass, and what PostFilter says.
	reasons map[string]string
	message string
	// scores of TopologyScore by node.
	scores map[string]int64
}

// preFilter starts a scheduling cycle.
func (w *world) preFilter(pod *v1.Pod) (fwk.CycleState, *fwk.Status) {
	w.t.Helper()
	state := framework.NewCycleState()
	_, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	return state, status
}

// filter runs one scheduling cycle up to Score. The nodes are filtered in parallel.
func (w *world) filter(pod *v1.Pod) (fwk.CycleState, []fwk.NodeInfo, outcome) {
	w.t.Helper()
	result := outcome{reasons: map[string]string{}, scores: map[string]int64{}}
	state, status := w.preFilter(pod)
	if !status.IsSuccess() {
		if status.Code() == fwk.Error {
			w.t.Fatalf("PreFilter: %v", status.AsError())
		}
		result.message = status.Message()
		return state, nil, result
	}
	statuses := make([]*fwk.Status, len(w.nodes))
	w.framework.Parallelizer().Until(w.ctx, len(w.nodes), func(i int) {
		statuses[i] = w.framework.RunFilterPlugins(w.ctx, state, pod, w.nodes[i])
	}, "test")
	var passed []fwk.NodeInfo
	absent := framework.NewDefaultNodeToStatus()
	for i, status := range statuses {
		switch {
		case status.IsSuccess():
			passed = append(passed, w.nodes[i])
		case status.Code() != fwk.UnschedulableAndUnresolvable:
			w.t.Fatalf("node %s: status %v (%s), want UnschedulableAndUnresolvable", w.nodes[i].Node().Name, status.Code(), status.Message())
		default:
			absent.Set(w.nodes[i].Node().Name, status)
			result.reasons[w.nodes[i].Node().Name] = status.Message()
		}
	}
	if len(passed) == 0 {
		_, status := w.framework.RunPostFilterPlugins(w.ctx, state, pod, absent)
		result.message = status.Message()
	}
	return state, passed, result
}

// schedule runs one scheduling and binding cycle. Ties go to the first node.
func (w *world) schedule(pod *v1.Pod) outcome {
	w.t.Helper()
	state, passed, result := w.filter(pod)
	if len(passed) == 0 {
		return result
	}
	result.node = w.best(state, pod, passed, &result)
	w.reserve(state, pod, &result)
	return result
}

// best scores the nodes.
func (w *world) best(state fwk.CycleState, pod *v1.Pod, passed []fwk.NodeInfo, result *outcome) string {
	w.t.Helper()
	if status := w.framework.RunPreScorePlugins(w.ctx, state, pod, passed); !status.IsSuccess() {
		w.t.Fatalf("PreScore: %v", status.AsError())
	}
	scores, status := w.framework.RunScorePlugins(w.ctx, state, pod, passed)
	if !status.IsSuccess() {
		w.t.Fatalf("Score: %v", status.AsError())
	}
	for _, node := range scores {
		for _, score := range node.Scores {
			if score.Name == topologyscore.Name {
				result.scores[node.Name] = score.Score / 50
			}
		}
	}
	return slices.MaxFunc(scores, func(a, b fwk.NodePluginScores) int {
		return cmp.Or(cmp.Compare(a.TotalScore, b.TotalScore), cmp.Compare(b.Name, a.Name))
	}).Name
}

// reserve reserves and binds, and reads what was allocated.
func (w *world) reserve(state fwk.CycleState, pod *v1.Pod, result *outcome) {
	w.t.Helper()
	before := w.allocatedClaims()
	if status := w.framework.RunReservePluginsReserve(w.ctx, state, pod, result.node); !status.IsSuccess() {
		w.t.Fatalf("Reserve: %v", status.AsError())
	}
	if status := w.framework.RunPreBindPlugins(w.ctx, state, pod, result.node); !status.IsSuccess() {
		w.t.Fatalf("PreBind: %v", status.AsError())
	}
	for name, claim := range w.allocatedClaims() {
		if before[name] != nil {
			continue
		}
		prefix := claim.Name + "/"
		if claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
			prefix = ""
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			result.devices = append(result.devices, prefix+device.Request+"="+device.Device)
		}
	}
	slices.Sort(result.devices)
	// The fake API server knows no versions, so nothing can be assumed before the
	// informer has it.
	w.waitFor("allocations", func() bool {
		list, err := w.manager.ResourceClaims().List()
		if err != nil {
			w.t.Fatal(err)
		}
		list = slices.DeleteFunc(slices.Clone(list), func(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation == nil })
		return len(list) == len(w.allocatedClaims())
	})
}

// allocatedClaims returns the claims with an allocation, by UID or name.
func (w *world) allocatedClaims() map[string]*resourceapi.ResourceClaim {
	w.t.Helper()
	list, err := w.client.ResourceV1().ResourceClaims("").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	allocated := map[string]*resourceapi.ResourceClaim{}
	for i := range list.Items {
		if claim := &list.Items[i]; claim.Status.Allocation != nil {
			allocated[claim.Name+"/"+string(claim.UID)] = claim
		}
	}
	return allocated
}

// waitForClaims waits until the scheduler knows of so many claims.
func (w *world) waitForClaims(count int) {
	w.t.Helper()
	w.waitFor(fmt.Sprintf("%d claims", count), func() bool {
		list, err := w.manager.ResourceClaims().List()
		if err != nil {
			w.t.Fatal(err)
		}
		return len(list) == count
	})
}

// waitFor waits for what an informer brings.
func (w *world) waitFor(what string, there func() bool) {
	w.t.Helper()
	for range 2000 {
		if there() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.t.Fatalf("waiting for %s: it does not come", what)
}

// offersOf returns what the nodes that passed were planned to give.
func offersOf(state fwk.CycleState, passed []fwk.NodeInfo) map[string]*plan.Offer {
	offers := map[string]*plan.Offer{}
	for _, node := range passed {
		name := node.Node().Name
		if offers[name] = plan.Read(state).Offer(name); offers[name] == nil {
			offers[name] = &plan.Offer{}
		}
	}
	return offers
}

// mismatches drains the events about plans that were not followed.
func (w *world) mismatches() []string {
	var found []string
	for {
		select {
		case event := <-w.recorder.Events:
			found = append(found, event)
		default:
			return found
		}
	}
}

// --- objects ---

// gpuNode makes a node and the slice of a recorded machine.
func gpuNode(t testing.TB, name, machine string, change ...func(slice *resourceapi.ResourceSlice)) []runtime.Object {
	t.Helper()
	recorded, err := topotest.Load(machine)
	if err != nil {
		t.Fatal(err)
	}
	return nodeOf(t, name, api.DriverName, recorded.Machine, change...)
}

// nodeOf makes a node and its slice.
func nodeOf(t testing.TB, name, driver string, m *topology.Machine, change ...func(slice *resourceapi.ResourceSlice)) []runtime.Object {
	t.Helper()
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		},
	}
	encoded, err := slicecodec.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for i, attributes := range encoded {
		attributes[api.AttrType] = resourceapi.DeviceAttribute{StringValue: new(api.DeviceTypeGPU)}
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i), Attributes: attributes, AllowMultipleAllocations: new(true), Capacity: gpuCapacity(),
		})
	}
	for _, f := range change {
		f(slice)
	}
	return []runtime.Object{
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}, slice,
	}
}

// gpuCapacity is what our driver publishes for 80Gi.
func gpuCapacity() map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	quantity := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		api.CapacityMemory: {Value: *quantity("80Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity("80Gi"),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Mi"), Max: quantity("80Gi"), Step: quantity("1Mi")},
		}},
		api.CapacityCores: {Value: *quantity("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity("0"),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("0"), Max: quantity("100"), Step: quantity("1")},
		}},
	}
}

// gpuClass is the class of the manifests.
func gpuClass(extended string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: api.DeviceClassGPU}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.driver == "gpu.topodra.dev" && device.attributes["gpu.topodra.dev"].type == "gpu"`,
	}}}
	if extended != "" {
		class.Spec.ExtendedResourceName = &extended
	}
	return class
}

// gpus asks for a number of GPUs.
func gpus(name string, count int64, change ...func(r *resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
	for _, f := range change {
		f(r.Exactly)
	}
	return r
}

// memory asks for a share.
func memory(amount string) func(r *resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{api.CapacityMemory: resource.MustParse(amount)},
		}
	}
}

// claimOf makes a claim in the namespace default.
func claimOf(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)}}
	claim.Spec.Devices.Requests = requests
	return claim
}

// configured adds our driver's configuration to a claim.
func configured(claim *resourceapi.ResourceClaim, topology string, requests ...string) *resourceapi.ResourceClaim {
	claim.Spec.Devices.Config = append(claim.Spec.Devices.Config, resourceapi.DeviceClaimConfiguration{
		Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     api.DriverName,
			Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","topology":%s}`, topology)},
		}},
	})
	return claim
}

// held allocates devices of a node to a claim, whole.
func held(claim *resourceapi.ResourceClaim, node string, positions ...int) *resourceapi.ResourceClaim {
	allocation := &resourceapi.AllocationResult{NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	for _, position := range positions {
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "r", Driver: api.DriverName, Pool: node, Device: fmt.Sprintf("gpu-%d", position), ShareID: new(uuid.NewUUID()),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				api.CapacityMemory: resource.MustParse("80Gi"), api.CapacityCores: resource.MustParse("0"),
			},
		})
	}
	claim.Status.Allocation = allocation
	return claim
}

// busy is a claim of somebody else that holds GPUs.
func busy(node string, positions ...int) *resourceapi.ResourceClaim {
	claim := held(claimOf("busy-"+node, gpus("r", int64(len(positions)))), node, positions...)
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "other", UID: "other"}}
	return claim
}

// shareOf is a claim of somebody else that holds a share of a GPU.
func shareOf(node string, position int, amount string) *resourceapi.ResourceClaim {
	claim := held(claimOf(fmt.Sprintf("share-%s-%d", node, position), gpus("r", 1, memory(amount))), node, position)
	claim.Status.Allocation.Devices.Results[0].ConsumedCapacity[api.CapacityMemory] = resource.MustParse(amount)
	return claim
}

// podOf makes a pod that uses claims.
func podOf(name string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}
	pod.Spec.SchedulerName = api.SchedulerName
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: claim, ResourceClaimName: new(claim)})
	}
	return pod
}
