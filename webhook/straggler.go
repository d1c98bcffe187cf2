// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// ReasonNotConverted is the reason of the event about a pod that came past the webhook.
const ReasonNotConverted = "NotConverted"

const (
	stragglerPage = 500
	// stragglerAge is how old a pod is before somebody is told: a moment, in which it may still get a node.
	stragglerAge = 10 * time.Second
)

// Straggler tells of pods that ask for GPUs in the classic vocabulary and were not converted: they were created while no
// webhook answered and its failure policy let them pass, or where its selectors exclude them. Nobody serves what they ask for,
// so they would wait for ever without a reason that helps.
type Straggler struct {
	Config *Config
	Client kubernetes.Interface
	Events events.EventRecorder
	// Period is the time between two looks.
	Period time.Duration

	told map[types.UID]bool // pods of the last look that were told of
}

// Start looks until ctx ends.
func (s *Straggler) Start(ctx context.Context) error {
	ticker := time.NewTicker(s.Period)
	defer ticker.Stop()
	for {
		if err := s.Look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking for pods that were not converted, will try again", "period", s.Period)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Look makes one pass over the pods that wait for a node.
func (s *Straggler) Look(ctx context.Context, now time.Time) error {
	waiting := fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)))
	told := map[types.UID]bool{}
	for token := ""; ; {
		list, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: waiting.String(), Limit: stragglerPage, Continue: token})
		if err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Spec.NodeName != "" || now.Sub(pod.CreationTimestamp.Time) < stragglerAge || !s.missed(pod) {
				continue
			}
			told[pod.UID] = true
			if !s.told[pod.UID] {
				s.Events.Eventf(pod, nil, corev1.EventTypeWarning, ReasonNotConverted, "Converting",
					"This pod asks for %s and was created past the webhook of TopoDRA, so nobody gives it GPUs: create it again", s.Config.Vocabulary.Resources.GPU)
			}
		}
		if token = list.Continue; token == "" {
			s.told = told
			return nil
		}
	}
}

// missed says whether the pod should have been converted.
func (s *Straggler) missed(pod *corev1.Pod) bool {
	h := Handler{Config: *s.Config}
	if !s.Config.Convert || h.ignored(pod) || h.foreign(pod) {
		return false
	}
	demand, _, errs := s.Config.Vocabulary.Parse(pod)
	return demand != nil || len(errs) > 0
}
