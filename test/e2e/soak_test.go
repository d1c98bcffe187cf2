// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
)

const (
	// soakPods is how many pods come and go, soakWindow how many there are at once.
	soakPods   = 200
	soakWindow = 16
	// soakDisturbance is after how many pods that have been checked something is restarted.
	soakDisturbance = 10
	// soakTimeout bounds all of it; soakStall how long nothing may happen.
	soakTimeout = 40 * time.Minute
	soakStall   = 4 * time.Minute
)

// soak is the state of the soak test.
type soak struct {
	*fixture
	random  *rand.Rand
	named   int // how many names have been given
	created int // without those that were replaced
	checked int
	alive   []string // in order of creation

	done               [disturbances]int
	cancelled, unlucky int // pods that were replaced, by reason

	template map[string]string // by pod
}

// soakTemplates are what pods ask for.
var soakTemplates = map[string][]request{
	"small":    {{memory: "1Gi", cores: "5"}},
	"large":    {{memory: "6Gi"}},
	"two":      {{count: 2, memory: "3Gi", cores: "20"}},
	"requests": {{name: "a", memory: "2Gi"}, {name: "b", memory: "5Gi", cores: "10"}},
}

// TestSoak has pods with shares come and go while the driver and the kubelet are restarted. No GPU is ever overbooked, every
// pod sees what it was promised, and at the end nothing is left.
func TestSoak(t *testing.T) {
	pods := soakPods
	if text := os.Getenv("TOPODRA_E2E_SOAK_PODS"); text != "" {
		var err error
		if pods, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFixture(t)
	f.extend(soakTimeout)
	// The course of things still depends on time; the seed fixes what is asked for and what is disturbed.
	s := &soak{fixture: f, random: rand.New(rand.NewPCG(1, 2)), template: map[string]string{}} //nolint:gosec // not a secret
	for name, requests := range soakTemplates {
		f.makeTemplate(name, requests...)
	}
	progress := time.Now()
	for s.checked < pods {
		for s.created < pods && len(s.alive) < soakWindow {
			s.add()
		}
		s.checkBooking()
		s.checkPrepared()
		if name, ok := s.next(); ok {
			s.checkOne(name)
			progress = time.Now()
			if s.checked%soakDisturbance == 0 {
				s.disturb()
			}
			continue
		}
		if time.Since(progress) > soakStall || f.ctx.Err() != nil {
			t.Fatalf("nothing has happened for %s, after %d of %d pods", time.Since(progress), s.checked, pods)
		}
		time.Sleep(pollPeriod)
	}
	// Everything is to be gone at last, also what is kept until the kubelet removes containers that have ended.
	f.waitFor("nothing to be left on disk", func() error {
		if err := f.nothingLeft(); err != nil {
			return err
		}
		return f.nothingOnDisk(nil)
	})
}

// add creates a pod: one that stays, or one that looks around and ends.
func (s *soak) add() {
	s.Helper()
	templates := slices.Sorted(maps.Keys(soakTemplates))
	name := fmt.Sprintf("pod-%d", s.named)
	s.named++
	s.template[name] = templates[s.random.IntN(len(templates))]
	pod := s.templatePod(name, s.template[name])
	if s.random.IntN(3) == 0 {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Containers[0].Command = viewCommand
	}
	s.create(pod)
	s.created++
	s.alive = append(s.alive, name)
}

// next returns a pod that can be checked: one that runs or has ended.
func (s *soak) next() (string, bool) {
	s.Helper()
	list, err := s.client.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			s.replace(pod)
			return "", false
		case pod.Status.Phase == corev1.PodSucceeded, pod.Spec.RestartPolicy != corev1.RestartPolicyNever && isReady(pod):
			return pod.Name, true
		}
	}
	return "", false
}

// replace has another pod take the place of one that must not be restarted and whose start has failed: what a Job would do.
// There are two reasons for which that may happen, and none is ours. A kubelet that is stopped cancels the starts that are
// under way. And a driver that is killed in the middle of what the runtime does to create a container leaves it without limits,
// so that it does not start; before and after that moment, its creation is refused, which the kubelet tries again.
func (s *soak) replace(pod *corev1.Pod) {
	s.Helper()
	state := podState(pod)
	switch {
	case strings.Contains(state, "context canceled") && s.cancelled < s.done[kubeletRestarted]*soakWindow:
		s.cancelled++
	case strings.Contains(state, cdi.Missing) && s.unlucky < s.done[driverKilled]:
		s.unlucky++
	default:
		s.Fatalf("pod %q has failed: %s", pod.Name, state)
	}
	s.Logf("pod %q is replaced: %s", pod.Name, state)
	s.drop(pod.Name)
	s.created--
}

// drop deletes a pod, without waiting for its end.
func (s *soak) drop(name string) {
	s.Helper()
	s.delete(name)
	s.alive = slices.DeleteFunc(s.alive, func(other string) bool { return other == name })
}

// checkOne looks into a pod and deletes it, without waiting for its end.
func (s *soak) checkOne(name string) {
	s.Helper()
	pod, err := s.client.CoreV1().Pods(s.ns).Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		s.checkEnded(pod)
	} else {
		s.check(pod, "main")
	}
	s.drop(name)
	s.checked++
}

// checkEnded checks what a pod has seen that has ended. Its claim is gone by now, and with it the knowledge which GPUs it had.
func (s *soak) checkEnded(pod *corev1.Pod) {
	s.Helper()
	got := s.lookBack(pod, "main")
	memory, err := got.report.MemoryMiB()
	var sum, want int64
	for _, limit := range memory {
		sum += limit
	}
	for _, r := range soakTemplates[s.template[pod.Name]] {
		quantity := resource.MustParse(r.memory)
		want += max(r.count, 1) * quantity.Value() >> 20
	}
	devices := 0
	for variable := range got.env {
		if strings.HasPrefix(variable, devicePrefix) {
			devices++
		}
	}
	if err != nil || !got.report.Preloaded || !got.report.RegionWritable || sum != want || devices != len(memory) {
		s.Errorf("pod %q of template %q: got %+v (%v), want limits of %d MiB in all for %d GPUs", pod.Name, s.template[pod.Name], got.report, err, want, devices)
	}
}

// checkPrepared adds up what the driver has prepared of every GPU.
func (s *soak) checkPrepared() {
	s.Helper()
	document, err := checkpoint.NewStore(s.driver.stateDir, nodeName).Load()
	if err != nil {
		s.Fatal(err)
	}
	booked := map[string]map[string]int64{} // by device, then by capacity
	for _, uid := range document.SortedUIDs() {
		for i := range document.Claims[uid].Devices {
			device := &document.Claims[uid].Devices[i]
			if booked[device.Name] == nil {
				booked[device.Name] = map[string]int64{}
			}
			for name, amount := range device.Consumed {
				booked[device.Name][name] += amount
			}
		}
	}
	for device, amounts := range booked {
		if amounts["memory"] > s.devices[device].memory || amounts["cores"] > 100 {
			s.Errorf("GPU %q: prepared are %v, more than there is", device, amounts)
		}
	}
}

// checkBooking adds up what claims consume of every GPU.
func (s *soak) checkBooking() {
	s.Helper()
	claims, err := s.client.ResourceV1().ResourceClaims("").List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	memory, cores := map[string]int64{}, map[string]int64{}
	for i := range claims.Items {
		allocation := claims.Items[i].Status.Allocation
		if allocation == nil {
			continue
		}
		for _, result := range allocation.Devices.Results {
			consumed := result.ConsumedCapacity[api.CapacityMemory]
			memory[result.Device] += consumed.Value()
			percent := result.ConsumedCapacity[api.CapacityCores]
			cores[result.Device] += percent.Value()
		}
	}
	for device, bytes := range memory {
		if bytes > s.devices[device].memory || cores[device] > 100 {
			s.Errorf("GPU %q: %d bytes of %d and %d%% of its compute are booked", device, bytes, s.devices[device].memory, cores[device])
		}
	}
}

// disturbance is what the soak test does to the node.
type disturbance int

const (
	driverKilled disturbance = iota
	driverStopped
	driverUpdated
	kubeletRestarted
)

// disturbances is how many kinds there are.
const disturbances = 4

func (d disturbance) String() string {
	return [disturbances]string{"driver killed", "driver stopped for a while", "driver updated", "kubelet restarted"}[d]
}

// disturb restarts something.
func (s *soak) disturb() {
	s.Helper()
	kind := disturbance(s.random.IntN(disturbances))
	s.done[kind]++
	var err error
	switch kind {
	case driverKilled:
		if err = s.driver.kill(); err == nil {
			err = s.driver.start(s.ctx)
		}
	case driverStopped:
		if err = s.driver.stop(); err == nil {
			time.Sleep(time.Duration(s.random.IntN(3000)) * time.Millisecond)
			err = s.driver.start(s.ctx)
		}
	case driverUpdated:
		old := s.driver.current
		if s.driver.current, err = s.driver.launch(s.ctx); err == nil {
			err = old.Stop()
		}
	case kubeletRestarted:
		err = s.node.RestartKubelet(s.ctx)
	}
	s.Logf("after %d pods: %s", s.checked, kind)
	if err != nil {
		s.Fatal(err)
	}
}
