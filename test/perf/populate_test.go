// SPDX-License-Identifier: Apache-2.0

//go:build perf

package perf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/driver/recorded"
	"github.com/topodra/topodra/topology/topotest"
)

// usual is what most nodes are, others what the rest of a mixed cluster is.
const usual = "hgxh100_8x_numa2"

var others = []string{"dgx1v_8xv100", "pcie_8x_pix_node_sys", "h100nvl_8x_pairs", "rtx4090_8x_all_sys"}

// writers is how many requests to the API server are in flight.
const writers = 30

// populate publishes the GPUs of all nodes as the driver would, and fills some nodes.
func populate(ctx context.Context, client kubernetes.Interface, run *Run) error {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // Every run is to be of the same cluster.
	machines := make([]string, run.Nodes)
	for i := range machines {
		machines[i] = usual
		if random.IntN(100) < run.Case.MixedPercent {
			machines[i] = others[random.IntN(len(others))]
		}
	}
	full := map[int]bool{}
	for _, i := range random.Perm(run.Nodes)[:run.Nodes*run.Case.FilledPercent/100] {
		full[i] = true
	}
	dir, err := os.MkdirTemp("", "topodra-perf-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range append([]string{usual}, others...) {
		content, err := topotest.Bytes(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".json"), content, 0o600); err != nil {
			return err
		}
	}
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "filler"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	var mutex sync.Mutex
	var failure error
	workqueue.ParallelizeUntil(ctx, writers, run.Nodes, func(i int) {
		if err := publishNode(ctx, client, NodeName(i), filepath.Join(dir, machines[i]+".json"), full[i]); err != nil {
			mutex.Lock()
			defer mutex.Unlock()
			failure = err
		}
	})
	return failure
}

// publishNode creates what the driver would publish, and a claim that holds all of it
// if the node is full.
func publishNode(ctx context.Context, client kubernetes.Interface, node, machine string, full bool) error {
	snapshot, err := recorded.New(machine, node).Discover(ctx)
	if err != nil {
		return err
	}
	published, err := publish.Build(snapshot, publish.Options{NodeName: node})
	if err != nil {
		return err
	}
	var held []resourceapi.DeviceRequestAllocationResult
	for name, pool := range published.Resources.Pools {
		for i := range pool.Slices {
			slice := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: api.DriverName, NodeName: &node, Devices: pool.Slices[i].Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				},
			}
			if _, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return err
			}
			for _, device := range pool.Slices[i].Devices {
				held = append(held, wholeDevice(name, &device))
			}
		}
	}
	if !full {
		return nil
	}
	return fill(ctx, client, node, held)
}

// wholeDevice is the result of a claim that takes all of a device's memory.
func wholeDevice(pool string, device *resourceapi.Device) resourceapi.DeviceRequestAllocationResult {
	memory := device.Capacity[api.CapacityMemory]
	return resourceapi.DeviceRequestAllocationResult{
		Request: "gpus", Driver: api.DriverName, Pool: pool, Device: device.Name, ShareID: new(uuid.NewUUID()),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			api.CapacityMemory: memory.Value, api.CapacityCores: resource.MustParse("0"),
		},
	}
}

// fill allocates devices of a node to a claim of nobody.
func fill(ctx context.Context, client kubernetes.Interface, node string, held []resourceapi.DeviceRequestAllocationResult) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "filler"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(held)),
	}}}
	claim, err := client.ResourceV1().ResourceClaims("filler").Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: held},
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
		}}}}},
	}
	_, err = client.ResourceV1().ResourceClaims("filler").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}
