// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/test/e2e/vgpudouble"
	"github.com/topodra/topodra/test/node"
)

const (
	// testTimeout bounds one test, waitTimeout one wait in it: generous, because the machine may be busy.
	testTimeout = 10 * time.Minute
	waitTimeout = 3 * time.Minute
	pollPeriod  = 100 * time.Millisecond
)

// fixture is what one test has for itself.
type fixture struct {
	*testing.T
	*world
	ctx context.Context //nolint:containedctx // the life of the test
	ns  string
}

// newFixture makes a namespace and has it emptied at the end of the test. The driver runs when the test begins and is made
// to run at its end.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, world: shared}
	f.extend(testTimeout)
	namespace, err := f.client.CoreV1().Namespaces().Create(f.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.ns = namespace.Name
	t.Cleanup(f.finish)
	return f
}

// extend gives the test this much time from now on.
func (f *fixture) extend(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	f.Cleanup(cancel)
	f.ctx = ctx
}

// finish removes what the test made and checks that nothing is left of it.
func (f *fixture) finish() {
	if f.Failed() {
		f.explain()
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	f.ctx = ctx
	f.node.Connect()
	if err := f.driver.start(ctx); err != nil {
		f.Fatal(err)
	}
	if err := f.node.StartContainerd(ctx); err != nil {
		f.Fatal(err)
	}
	if err := f.node.StartKubelet(ctx); err != nil {
		f.Fatal(err)
	}
	if err := f.client.CoreV1().Pods(f.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		f.Error(err)
	}
	if err := f.client.ResourceV1().ResourceClaims(f.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		f.Error(err)
	}
	f.waitFor("nothing of the test's pods to be left", func() error { return f.nothingLeft() })
	if err := f.client.CoreV1().Namespaces().Delete(ctx, f.ns, metav1.DeleteOptions{}); err != nil {
		f.Error(err)
	}
	if err := f.node.Err(); err != nil {
		f.Error(err)
	}
}

// nothingLeft reports, as an error, what is left of the pods of this namespace, in the API or on the node.
func (f *fixture) nothingLeft() error {
	pods, err := f.client.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d pods are left, the first is %q: %s", len(pods.Items), pods.Items[0].Name, podState(&pods.Items[0]))
	}
	claims, err := f.client.ResourceV1().ResourceClaims(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(claims.Items) > 0 {
		return fmt.Errorf("%d claims are left, the first is %q", len(claims.Items), claims.Items[0].Name)
	}
	containers, err := f.node.Containers(f.ctx, "")
	if err != nil {
		return err
	}
	// The kubelet takes its time to remove those that have ended.
	if i := slices.IndexFunc(containers, func(c node.Container) bool { return c.Running }); i >= 0 {
		return fmt.Errorf("container %q of pod %q still runs", containers[i].Name, containers[i].PodUID)
	}
	return f.nothingOnDisk(containers)
}

// nothingOnDisk reports, as an error, what the driver has kept of claims that are gone, and of containers that are not among
// those that the runtime knows. No test leaves any claim behind, so whatever there is, is too much.
func (f *fixture) nothingOnDisk(known []node.Container) error {
	for _, dir := range []string{f.node.CDIDir(), f.path("regions", "claims"), f.path("regions", "containers"), f.path("containers")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		entries = slices.DeleteFunc(entries, func(entry fs.DirEntry) bool {
			return slices.ContainsFunc(known, func(c node.Container) bool { return c.ID == strings.TrimSuffix(entry.Name(), ".json") })
		})
		if len(entries) > 0 {
			return fmt.Errorf("%d files are left in %q, the first is %q", len(entries), dir, entries[0].Name())
		}
	}
	document, err := checkpoint.NewStore(f.driver.stateDir, nodeName).Load()
	if err != nil {
		return err
	}
	if uids := document.SortedUIDs(); len(uids) > 0 {
		return fmt.Errorf("%d claims are left in the checkpoint, the first is %s", len(uids), document.Claims[uids[0]])
	}
	mounts, err := f.node.Command(f.ctx, "cat", "/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(mounts) {
		if strings.Contains(line, " "+f.path("regions")) || strings.Contains(line, "/rootfs ") {
			return fmt.Errorf("a mount is left: %s", line)
		}
	}
	return nil
}

// isNoFile reports, as an error, that a file is there.
func isNoFile(path string) error {
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		return fmt.Errorf("%q should be gone: %w", path, cmp.Or(err, fs.ErrExist))
	}
	return nil
}

// path is below the driver's state directory.
func (f *fixture) path(elem ...string) string {
	return strings.Join(append([]string{f.driver.stateDir}, elem...), "/")
}

// waitFor waits until probe has no error any more. Meanwhile it nudges pods: it has the kubelet look at once, every second, at
// what it would otherwise try again after up to 15 s.
func (f *fixture) waitFor(what string, probe func() error, nudged ...string) {
	f.Helper()
	var last error
	began := time.Now()
	for nudges := 1; time.Since(began) < waitTimeout && f.ctx.Err() == nil; time.Sleep(pollPeriod) {
		if last = probe(); last == nil {
			return
		}
		if time.Since(began) > time.Duration(nudges)*time.Second {
			nudges++
			f.nudge(nudged)
		}
	}
	f.Fatalf("waiting for %s: %v", what, last)
}

// nudge changes pods in a way that means nothing but that the kubelet looks at them.
func (f *fixture) nudge(names []string) {
	f.Helper()
	for _, name := range names {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/nudged":%q}}}`, time.Now().Format(time.RFC3339Nano))
		_, err := f.client.CoreV1().Pods(f.ns).Patch(f.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			f.Fatal(err)
		}
	}
}

// request is one request of a claim.
type request struct {
	name   string // default "gpus"
	count  int64  // default 1
	memory string // per GPU; empty takes the GPU whole
	cores  string // percent; empty is best effort
}

// claim makes a claim in the API.
func (f *fixture) claim(name string, requests ...request) {
	f.Helper()
	f.configuredClaim(name, "", "", requests...)
}

// configuredClaim makes a claim for devices of a class, by default ours, with the JSON of a GPUClaimConfig besides kind and
// version, if any.
func (f *fixture) configuredClaim(name, class, config string, requests ...request) {
	f.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.ns}}
	claim.Spec.Devices = deviceClaim(requests)
	for i := range claim.Spec.Devices.Requests {
		exact := claim.Spec.Devices.Requests[i].Exactly
		exact.DeviceClassName = cmp.Or(class, exact.DeviceClassName)
	}
	if config != "" {
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(config)}}
	}
	if _, err := f.client.ResourceV1().ResourceClaims(f.ns).Create(f.ctx, claim, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// class makes a class of our GPUs with a configuration; it goes with the test.
func (f *fixture) class(name, config string) {
	f.Helper()
	classes := f.client.ResourceV1().DeviceClasses()
	class, err := classes.Get(f.ctx, api.DeviceClassGPU, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	class = &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: class.Spec}
	class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: opaque(config)})
	if _, err := classes.Create(f.ctx, class, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := classes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			f.Error(err)
		}
	})
}

// opaque wraps a configuration for our driver.
func opaque(config string) resourceapi.DeviceConfiguration {
	raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, api.GroupVersion().String(), api.KindGPUClaimConfig, config)
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: []byte(raw)},
	}}
}

// deviceClaim turns requests into the API's form.
func deviceClaim(requests []request) resourceapi.DeviceClaim {
	var devices resourceapi.DeviceClaim
	for _, r := range requests {
		exact := &resourceapi.ExactDeviceRequest{
			DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: max(r.count, 1),
		}
		capacity := map[resourceapi.QualifiedName]resource.Quantity{}
		if r.memory != "" {
			capacity[api.CapacityMemory] = resource.MustParse(r.memory)
		}
		if r.cores != "" {
			capacity[api.CapacityCores] = resource.MustParse(r.cores)
		}
		if len(capacity) > 0 {
			exact.Capacity = &resourceapi.CapacityRequirements{Requests: capacity}
		}
		name := r.name
		if name == "" {
			name = "gpus"
		}
		devices.Requests = append(devices.Requests, resourceapi.DeviceRequest{Name: name, Exactly: exact})
	}
	return devices
}

// makeTemplate makes a template for claims.
func (f *fixture) makeTemplate(name string, requests ...request) {
	f.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.ns}}
	template.Spec.Spec.Devices = deviceClaim(requests)
	if _, err := f.client.ResourceV1().ResourceClaimTemplates(f.ns).Create(f.ctx, template, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// templatePod is a pod of one container, "main", with a claim from a template.
func (f *fixture) templatePod(name, template string) *corev1.Pod {
	pod := f.simplePod(name)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &template}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
	return pod
}

// errNotYet is the reason to go on waiting where there is no better one.
var errNotYet = errors.New("not yet")

// use says which claim a container uses.
type use struct {
	claim   string
	request string // empty is all of the claim
}

// box is one container of a pod.
type box struct {
	name    string // default "main"
	uses    []use
	command []string // default: sleep
	env     map[string]string
}

// pod builds a pod of containers; init and sidecar containers come before them.
func (f *fixture) pod(name string, init, sidecars, containers []box) *corev1.Pod {
	no, grace := false, int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.ns},
		Spec: corev1.PodSpec{
			SchedulerName: schedulerName, EnableServiceLinks: &no, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
			DNSPolicy: corev1.DNSDefault,
		},
	}
	always := corev1.ContainerRestartPolicyAlways
	claims := map[string]bool{}
	for _, group := range [][]box{init, sidecars, containers} {
		for _, b := range group {
			for _, u := range b.uses {
				if !claims[u.claim] {
					claims[u.claim] = true
					pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: u.claim, ResourceClaimName: &u.claim})
				}
			}
		}
	}
	for _, b := range init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, b.container())
	}
	for _, b := range sidecars {
		sidecar := b.container()
		sidecar.RestartPolicy = &always
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
	}
	for _, b := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, b.container())
	}
	return pod
}

func (b box) container() corev1.Container {
	c := corev1.Container{Name: b.name, Image: vgpudouble.ImageRef, ImagePullPolicy: corev1.PullNever, Command: b.command}
	if c.Name == "" {
		c.Name = "main"
	}
	if c.Command == nil {
		c.Command = []string{"/bin/sleep", "36000"}
	}
	for _, u := range b.uses {
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: u.claim, Request: u.request})
	}
	for name, value := range b.env {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	slices.SortFunc(c.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	return c
}

// simplePod is a pod of one container that uses claims.
func (f *fixture) simplePod(name string, claims ...string) *corev1.Pod {
	var uses []use
	for _, claim := range claims {
		uses = append(uses, use{claim: claim})
	}
	return f.pod(name, nil, nil, []box{{uses: uses}})
}

// create creates a pod.
func (f *fixture) create(pod *corev1.Pod) *corev1.Pod {
	f.Helper()
	created, err := f.client.CoreV1().Pods(f.ns).Create(f.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return created
}

// run creates a pod and waits until all its containers run.
func (f *fixture) run(pod *corev1.Pod) *corev1.Pod {
	f.Helper()
	f.create(pod)
	return f.running(pod.Name)
}

// running waits until all containers of a pod run, and returns it.
func (f *fixture) running(name string) *corev1.Pod {
	f.Helper()
	var pod *corev1.Pod
	f.waitFor(fmt.Sprintf("pod %q to run", name), func() (err error) {
		pod, err = f.isRunning(name)
		return err
	}, name)
	return pod
}

// isRunning returns a pod all of whose containers run, or an error.
func (f *fixture) isRunning(name string) (*corev1.Pod, error) {
	pod, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if !isReady(pod) {
		return nil, fmt.Errorf("it does not: %s", podState(pod))
	}
	return pod, nil
}

// isReady reports whether all containers of a pod run.
func isReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// delete deletes a pod; it is there for a while.
func (f *fixture) delete(name string) {
	f.Helper()
	if err := f.client.CoreV1().Pods(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}

// remove deletes a pod and waits until it is gone.
func (f *fixture) remove(name string) {
	f.Helper()
	f.delete(name)
	f.gone(name)
}

// removeClaim deletes a claim that no pod uses any more.
func (f *fixture) removeClaim(name string) {
	f.Helper()
	if err := f.client.ResourceV1().ResourceClaims(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}

// gone waits until a pod is gone.
func (f *fixture) gone(name string) {
	f.Helper()
	f.waitFor(fmt.Sprintf("pod %q to be gone", name), func() error { return f.isGone(name) }, name)
}

// isGone reports, as an error, that a pod is there.
func (f *fixture) isGone(name string) error {
	pod, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("it is there: %s", podState(pod))
	}
}

// podState tells in one line how far a pod is.
func podState(pod *corev1.Pod) string {
	var parts []string
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			parts = append(parts, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		switch {
		case c.State.Waiting != nil:
			parts = append(parts, fmt.Sprintf("%s waits: %s %s", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message))
		case c.State.Terminated != nil:
			parts = append(parts, fmt.Sprintf("%s ended: %s, exit code %d %s", c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode, c.State.Terminated.Message))
		}
	}
	return fmt.Sprintf("%s (%s)", pod.Status.Phase, strings.Join(parts, "; "))
}

// events returns the events of an object as "reason: message" lines, oldest first.
func (f *fixture) events(name string) []string {
	f.Helper()
	list, err := f.client.CoreV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var lines []string
	for i := range list.Items {
		if event := &list.Items[i]; event.InvolvedObject.Name == name {
			lines = append(lines, event.Reason+": "+event.Message)
		}
	}
	return lines
}

// eventually waits for an event of an object with all the words in it.
func (f *fixture) eventually(name string, words ...string) {
	f.Helper()
	f.waitFor(fmt.Sprintf("an event of %q with %q", name, words), func() error {
		events := f.events(name)
		for _, event := range events {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(event, word) }) {
				return nil
			}
		}
		return fmt.Errorf("its events are %q", events)
	})
}

// explain logs what helps to understand a failure.
func (f *fixture) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	f.ctx = ctx
	pods, err := f.client.CoreV1().Pods(f.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.Log(err)
		return
	}
	for i := range pods.Items {
		f.Logf("pod %q: %s", pods.Items[i].Name, podState(&pods.Items[i]))
	}
	if list, err := f.client.CoreV1().Events(f.ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, event := range list.Items {
			f.Logf("event of %s %q: %s: %s", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
		}
	}
	if f.driver.current != nil {
		f.Logf("last lines of the driver's log:\n%s", f.driver.current.LogTail())
	}
}
