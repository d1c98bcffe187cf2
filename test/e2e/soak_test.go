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
	created int // without those that were refused
	checked int
	refused int
	alive   []string // in order of creation

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
	name := fmt.Sprintf("pod-%d", s.created+s.refused)
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

// replace has another pod take the place of one that must not be started again and whose start was refused, because the
// driver was away when its container was made: what a Job would do. No other failure is accepted.
func (s *soak) replace(pod *corev1.Pod) {
	s.Helper()
	if state := podState(pod); !strings.Contains(state, "limits-were-not-set") {
		s.Fatalf("pod %q has failed: %s", pod.Name, state)
	}
	s.Logf("pod %q was refused while the driver was away", pod.Name)
	s.refused++
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

// disturb restarts something.
func (s *soak) disturb() {
	s.Helper()
	kind := s.random.IntN(4)
	var err error
	switch kind {
	case 0:
		if err = s.driver.kill(); err == nil {
			err = s.driver.start(s.ctx)
		}
	case 1:
		if err = s.driver.stop(); err == nil {
			time.Sleep(time.Duration(s.random.IntN(3000)) * time.Millisecond)
			err = s.driver.start(s.ctx)
		}
	case 2:
		old := s.driver.current
		if s.driver.current, err = s.driver.launch(s.ctx); err == nil {
			err = old.Stop()
		}
	case 3:
		err = s.node.RestartKubelet(s.ctx)
	}
	s.Logf("after %d pods: %s", s.checked, []string{"driver killed", "driver stopped for a while", "driver updated", "kubelet restarted"}[kind])
	if err != nil {
		s.Fatal(err)
	}
}
