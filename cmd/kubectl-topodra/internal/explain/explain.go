// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/internal/livestate"
)

// Snapshot is what the API server has. Lists that could not be read are nil, and Unread says why.
type Snapshot struct {
	Pod       *corev1.Pod
	Slices    []resourceapi.ResourceSlice
	Claims    []resourceapi.ResourceClaim // of all namespaces, or of the pod alone
	Templates map[string]*resourceapi.ResourceClaimTemplate
	Classes   []resourceapi.DeviceClass
	Nodes     []corev1.Node
	Pods      []corev1.Pod
	Events    []corev1.Event // of the pod
	Unread    []string
	// Now is the time of the snapshot.
	Now time.Time
}

// Explanation is the answer. Its JSON form is an interface to other programs: no field is ever left out.
type Explanation struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Phase     string `json:"phase"`
	Node      string `json:"node"`
	Scheduler string `json:"scheduler"`
	// Claims are what it asks for and got.
	Claims []Claim `json:"claims"`
	// Placed is about a pod with GPUs, Pending about one without a node; both nil for one that needs none.
	Placed  *Placed  `json:"placed"`
	Pending *Pending `json:"pending"`
	// Notes are what could not be found out, and why.
	Notes []string `json:"notes"`
}

// Claim is one claim of the pod.
type Claim struct {
	Source   string   `json:"source"`
	Ref      string   `json:"ref"`
	Name     string   `json:"name"`
	Template string   `json:"template"`
	Asks     []string `json:"asks"` // one line per request, alternatives included
	// AllocatedAt is empty when it has no devices, or nobody said when.
	AllocatedAt string   `json:"allocatedAt"`
	Devices     []Device `json:"devices"`
	Problem     string   `json:"problem"`
}

// Device is one device of a claim.
type Device struct {
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// GPU is the index on the node, -1 when it is not published any more or belongs to another driver.
	GPU  int    `json:"gpu"`
	Part string `json:"migProfile"`
	Use  string `json:"use"`
}

// Of explains a pod.
func Of(ctx context.Context, planner *fit.Planner, s *Snapshot) (*Explanation, error) {
	live, err := livestate.Build(s.Slices, s.Claims)
	if err != nil {
		return nil, fmt.Errorf("reading the published GPUs: %w", err)
	}
	x := &explainer{Snapshot: s, planner: planner, live: live, world: worldOf(s)}
	x.claims = ask.Claims(s.Pod, x.world)
	e := &Explanation{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, Phase: string(s.Pod.Status.Phase), Node: s.Pod.Spec.NodeName,
		Scheduler: s.Pod.Spec.SchedulerName, Claims: []Claim{}, Notes: append([]string{}, s.Unread...),
	}
	for i := range x.claims {
		e.Claims = append(e.Claims, x.describe(&x.claims[i]))
	}
	switch {
	case len(x.claims) == 0:
		e.Notes = append(e.Notes, "the pod asks for no devices: it has no claims, and no device class backs a resource that it asks for")
	case s.Pod.Spec.NodeName == "":
		e.Pending, err = x.pending(ctx)
	case s.Pod.Status.Phase == corev1.PodSucceeded || s.Pod.Status.Phase == corev1.PodFailed:
		e.Notes = append(e.Notes, "the pod has ended: its claims are for others to have again, unless another pod uses them")
		e.Placed, err = x.placed(ctx, &e.Notes)
	default:
		e.Placed, err = x.placed(ctx, &e.Notes)
	}
	return e, err
}

// explainer is one question.
type explainer struct {
	*Snapshot
	planner *fit.Planner
	live    []livestate.Node
	world   *ask.World
	claims  []ask.Claim
}

func worldOf(s *Snapshot) *ask.World {
	w := &ask.World{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: s.Templates, Classes: map[string]*resourceapi.DeviceClass{}}
	for i := range s.Claims {
		if s.Claims[i].Namespace == s.Pod.Namespace {
			w.Claims[s.Claims[i].Name] = &s.Claims[i]
		}
	}
	for i := range s.Classes {
		w.Classes[s.Classes[i].Name] = &s.Classes[i]
	}
	return w
}

// own tells whether a holder is a claim of the pod.
func (x *explainer) own(h livestate.Holder) bool {
	for i := range x.claims {
		if c := x.claims[i].Object; c != nil && c.Name == h.Claim && c.Namespace == h.Namespace {
			return true
		}
	}
	return false
}

// nodeOf returns the live node of a pool, or nil.
func (x *explainer) nodeOf(pool string) *livestate.Node {
	for i := range x.live {
		if x.live[i].Pool == pool {
			return &x.live[i]
		}
	}
	return nil
}
