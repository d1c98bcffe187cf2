// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
)

// Labels that the chart gives to everything that it installs.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	labelVersion   = "app.kubernetes.io/version"
	ourName        = "topodra"
)

// Components of TopoDRA that run as pods.
const (
	componentDriver    = "driver"
	componentScheduler = "scheduler"
	componentWebhook   = "webhook"
)

// componentOf returns which part of TopoDRA a pod is, by its labels or its service account; "" for other pods.
func componentOf(p *corev1.Pod) string {
	if p.Labels[labelName] == ourName {
		return p.Labels[labelComponent]
	}
	for _, c := range []string{componentDriver, componentScheduler, componentWebhook} {
		if p.Spec.ServiceAccountName == ourName+"-"+c {
			return c
		}
	}
	return ""
}

// podsOf returns the pods of a component that have not ended.
func (s *Snapshot) podsOf(component string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		if componentOf(p) == component && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	return pods
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ours tells whether an object of the cluster belongs to TopoDRA.
func ours(meta *metav1.ObjectMeta) bool {
	return meta.Labels[labelName] == ourName || meta.Name == ourName || strings.HasPrefix(meta.Name, ourName+"-") ||
		strings.HasPrefix(meta.Name, ourName+".") || strings.HasPrefix(meta.Name, ourName+":")
}

// node returns a node by name, or nil.
func (s *Snapshot) node(name string) *corev1.Node {
	at := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if at < 0 {
		return nil
	}
	return &s.Nodes[at]
}

// publishers are the names of nodes that slices are for, in order.
func (s *Snapshot) publishers() []string {
	var names []string
	for i := range s.Slices {
		spec := &s.Slices[i].Spec
		if spec.Driver == api.DriverName && spec.NodeName != nil && !slices.Contains(names, *spec.NodeName) {
			names = append(names, *spec.NodeName)
		}
	}
	slices.Sort(names)
	return names
}

// several says "1 node", "2 nodes".
func several(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return itoa(n) + " " + noun + "s"
}
