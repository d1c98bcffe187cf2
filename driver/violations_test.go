// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

// podLog keeps events about pods.
type podLog struct{ got []string }

func (l *podLog) Pod(namespace, name string, uid types.UID, reason, message string) {
	l.got = append(l.got, fmt.Sprintf("%s/%s %s %s: %s", namespace, name, uid, reason, message))
}

// TestViolated: people are told always; the pod, and no other of its name, is
// evicted only where that was chosen.
func TestViolated(t *testing.T) {
	t.Parallel()
	violation := &watch.Violation{ContainerID: "id", UUID: "GPU-1", UsedMiB: 11, LimitMiB: 10,
		Owner: &owners.Owner{Namespace: "default", Pod: "train", PodUID: "uid", Container: "main"}}
	for policy, evicts := range map[OnViolation]int{"": 0, OnViolationTell: 0, OnViolationEvict: 1} {
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "uid"}})
		log := &podLog{}
		actions := &violationActions{client: client, events: log, policy: policy}
		actions.Violated(t.Context(), violation)
		want := `default/train uid GPUMemoryLimitExceeded: container "main" of pod "default/train" uses 11 MiB of GPU "GPU-1", its limit is 10 MiB`
		if len(log.got) != 1 || !strings.HasPrefix(log.got[0], want) || strings.Contains(log.got[0], "evicted") != (evicts > 0) {
			t.Errorf("%q: got events %q", policy, log.got)
		}
		var evictions []*policyv1.Eviction
		for _, action := range client.Actions() {
			if create, ok := action.(clienttesting.CreateAction); ok && action.GetSubresource() == "eviction" {
				if eviction, ok := create.GetObject().(*policyv1.Eviction); ok {
					evictions = append(evictions, eviction)
				}
			}
		}
		if len(evictions) != evicts || (evicts > 0 && (evictions[0].Name != "train" || *evictions[0].DeleteOptions.Preconditions.UID != "uid")) {
			t.Errorf("%q: got evictions %+v", policy, evictions)
		}
	}
}

func TestNewWatcher(t *testing.T) {
	t.Parallel()
	config := goodConfig()
	config.Claims = &ClaimsConfig{StateDir: "/state", CDIDir: "/cdi", Base: cdi.Simulated{}, OnViolation: "Shout"}
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), `policy "Shout" for violations is unknown`) {
		t.Errorf("got error %v", err)
	}
	if watcher, err := newWatcher(&config, &podLog{}); watcher != nil || err != nil {
		t.Errorf("nobody to ask: got %v, %v", watcher, err)
	}
}
