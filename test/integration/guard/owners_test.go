// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/chart/release"
)

// owners watches all claims, so that not even a moment in which a whole GPU has two owners goes unseen.
type owners struct {
	mu     sync.Mutex
	claims map[string][]string // "namespace/name" → its GPUs
	double []string
	// stopped is set before the watch is.
	stopped bool
}

// watchOwners watches until the test has ended, which fails if any GPU had two owners.
func watchOwners(t *testing.T) *owners {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // it watches how the test is cleaned up, too
	o := &owners{claims: map[string][]string{}}
	config := bed.AdminConfig()
	config.Timeout = 0 // which would end the watch
	client := release.Client(t, config)
	list, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		o.see(&list.Items[i], false)
	}
	changes, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { o.follow(changes) })
	t.Cleanup(func() {
		o.mu.Lock()
		o.stopped = true
		o.mu.Unlock()
		changes.Stop()
		wait.Wait()
		for _, problem := range o.double {
			t.Error(problem)
		}
	})
	return o
}

// follow reads changes until their end.
func (o *owners) follow(changes watch.Interface) {
	for change := range changes.ResultChan() {
		if claim, ok := change.Object.(*resourceapi.ResourceClaim); ok {
			o.see(claim, change.Type == watch.Deleted)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stopped {
		o.double = append(o.double, "the watch on claims ended too early: not everything was seen")
	}
}

func (o *owners) see(claim *resourceapi.ResourceClaim, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := claim.Namespace + "/" + claim.Name
	delete(o.claims, key)
	if gone || claim.Status.Allocation == nil {
		return
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != api.DriverName {
			continue
		}
		gpu := r.Pool + "/" + r.Device
		for other, gpus := range o.claims {
			if slices.Contains(gpus, gpu) {
				o.double = append(o.double, fmt.Sprintf("GPU %q belongs to %q and %q", gpu, other, key))
			}
		}
		o.claims[key] = append(o.claims[key], gpu)
	}
}

// of returns the claims of a namespace that have GPUs, sorted.
func (o *owners) of(namespace string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for key := range o.claims {
		if name, ok := strings.CutPrefix(key, namespace+"/"); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// batchScheduler is what a scheduler does that knows claims but not that others allocate too: it gives the pods that name it the
// first GPU it has not given away itself.
type batchScheduler struct {
	client kubernetes.Interface
	given  map[string]bool
}

// runBatchScheduler runs one until the test has ended.
func runBatchScheduler(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &batchScheduler{client: bed.as(t, thirdParty), given: map[string]bool{}}
	var wait sync.WaitGroup
	wait.Go(func() { b.run(ctx) })
	t.Cleanup(func() {
		cancel()
		wait.Wait()
	})
}

func (b *batchScheduler) run(ctx context.Context) {
	for ctx.Err() == nil {
		pods, err := b.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Spec.SchedulerName == thirdParty {
				b.place(ctx, pod)
			}
		}
		sleep(ctx)
	}
}
