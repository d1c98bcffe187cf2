// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/status"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// Pending is about a pod without a node.
type Pending struct {
	// Said is what the scheduler said last, and when; empty if no scheduler has looked at the pod.
	Said     string `json:"said"`
	SaidTime string `json:"saidTime"`
	// Problems keep it from every node.
	Problems []string `json:"problems"`
	// Nodes say why each of them is refused, by name.
	Nodes []Refusal `json:"nodes"`
	// Free are the claims to free on one node each, the least first; empty when nothing that is freed helps.
	Free []Release `json:"free"`
	// FreeText says by which rule, or why there is nothing to free.
	FreeText string `json:"freeText"`
}

// Refusal is why a node does not get the pod.
type Refusal struct {
	Node string `json:"node"`
	// Fits tells that nothing that was looked at speaks against it.
	Fits bool   `json:"fits"`
	Why  string `json:"why"`
	// BestNow and BestWhenFree are the sets for a demand that is not met, whatever its policy.
	BestNow      *Set `json:"bestNow"`
	BestWhenFree *Set `json:"bestWhenFree"`
}

// manyReleases is how many nodes are named whose claims could be freed.
const manyReleases = 3

// pending explains why the pod has no node.
func (x *explainer) pending(ctx context.Context) (*Pending, error) {
	p := &Pending{Problems: []string{}, Nodes: []Refusal{}, Free: []Release{}}
	x.said(p)
	p.Problems = append(p.Problems, x.problems()...)
	if slices.ContainsFunc(x.claims, func(c ask.Claim) bool { return c.Object == nil && c.Problem != "" }) {
		p.FreeText = "what the pod needs is not known before its claims exist"
		return p, nil
	}
	choices, problem := ask.Choices(x.Pod, x.claims, x.world.Classes)
	if problem != "" {
		p.Problems = append(p.Problems, problem)
		p.FreeText = "nothing that is freed helps before the claim is mended"
		return p, nil
	}
	search := newSearch(x)
	for _, name := range x.nodeNames() {
		r, err := x.refusal(ctx, name, choices, search)
		if err != nil {
			p.Problems = append(p.Problems, err.Error())
			p.FreeText = "nothing that is freed helps before the claim is mended"
			return p, nil
		}
		p.Nodes = append(p.Nodes, *r)
	}
	x.tooMany(p, choices)
	return p, search.run(ctx, p)
}

// said finds the last words of the scheduler.
func (x *explainer) said(p *Pending) {
	for _, c := range x.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			p.Said, p.SaidTime = c.Message, c.LastTransitionTime.UTC().Format(time.RFC3339)
		}
	}
	var last *corev1.Event
	for i := range x.Events {
		e := &x.Events[i]
		if e.Reason == "FailedScheduling" && (last == nil || eventTime(e).After(eventTime(last))) {
			last = e
		}
	}
	if last != nil {
		p.Said, p.SaidTime = last.Message, eventTime(last).UTC().Format(time.RFC3339)
	}
}

func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return e.EventTime.Time
	}
}

// problems are those that no node is to blame for.
func (x *explainer) problems() []string {
	var out []string
	if gates := x.Pod.Spec.SchedulingGates; len(gates) > 0 {
		var names []string
		for _, g := range gates {
			names = append(names, g.Name)
		}
		out = append(out, "the pod is held back by scheduling gates: "+strings.Join(names, ", "))
	}
	for i := range x.claims {
		if x.claims[i].Problem != "" {
			out = append(out, x.claims[i].Problem)
		}
	}
	if x.Pod.Spec.SchedulerName != api.SchedulerName {
		out = append(out, fmt.Sprintf("the pod names scheduler %q, which does not choose by topology unless it is TopoDRA's in its place: set spec.schedulerName to %q",
			x.Pod.Spec.SchedulerName, api.SchedulerName))
	}
	looked := len(x.Events) > 0
	for _, c := range x.Pod.Status.Conditions {
		looked = looked || c.Type == corev1.PodScheduled
	}
	if !looked {
		out = append(out, fmt.Sprintf("no scheduler has looked at the pod yet: does one with the name %q run? See \"kubectl topodra doctor\"", x.Pod.Spec.SchedulerName))
	}
	return out
}

// nodeNames are the names of all nodes, or of those with GPUs if nodes could not be read.
func (x *explainer) nodeNames() []string {
	var names []string
	for i := range x.Nodes {
		names = append(names, x.Nodes[i].Name)
	}
	for i := range x.live {
		if !slices.Contains(names, x.live[i].Name) {
			names = append(names, x.live[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// refusal says what speaks against a node. Demands that could be met there if claims were freed go to the search.
func (x *explainer) refusal(ctx context.Context, name string, choices [][]ask.Request, search *search) (*Refusal, error) {
	r := &Refusal{Node: name}
	var why []string
	at := slices.IndexFunc(x.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if at >= 0 {
		why = append(why, x.nodeProblems(&x.Nodes[at])...)
	} else if x.Nodes != nil {
		why = append(why, "there is no such node any more, but GPUs are published for it")
	}
	otherwise := len(why) == 0
	n := x.liveNode(name)
	if n == nil {
		if wantsGPUs(choices) {
			why = append(why, "publishes no GPUs")
		}
	} else {
		answer, demands, err := x.serve(ctx, n, choices)
		if err != nil {
			return nil, err
		}
		if !answer.Served {
			why = append(why, x.describeAnswer(n, answer, demands))
			r.BestNow, r.BestWhenFree = setOfOffer(name, answer.BestNow), setOfOffer(name, answer.BestWhenFree)
			if otherwise {
				search.add(n, demands)
			}
		}
	}
	if r.Why = strings.Join(why, "; "); r.Why == "" {
		r.Fits, r.Why = true, "nothing that can be seen here speaks against it"
	}
	return r, nil
}

func wantsGPUs(choices [][]ask.Request) bool {
	return slices.ContainsFunc(choices, func(c []ask.Request) bool { return len(c) > 0 })
}

func (x *explainer) liveNode(name string) *livestate.Node {
	for i := range x.live {
		if x.live[i].Name == name {
			return &x.live[i]
		}
	}
	return nil
}

// serve asks a node for each combination of alternatives; the answer is the first that is served, else the first refusal.
func (x *explainer) serve(ctx context.Context, n *livestate.Node, choices [][]ask.Request) (*fit.Answer, []*fit.Demand, error) {
	var demands []*fit.Demand
	var first *fit.Answer
	held := x.held(n)
	for _, choice := range choices {
		d, err := x.planner.NewDemand(ctx, n, choice, x.claims, held)
		if err != nil {
			return nil, nil, err
		}
		answer, err := d.Serve(ctx, func(livestate.Holder) bool { return true })
		if err != nil {
			return nil, nil, err
		}
		if answer.Served {
			return answer, nil, nil
		}
		demands = append(demands, d)
		if first == nil || first.Reason == placement.ReasonTooFewEligible && answer.Reason != placement.ReasonTooFewEligible {
			first = answer
		}
	}
	return first, demands, nil
}

// held are the GPUs of a node that the pod has already, through a claim that it shares.
func (x *explainer) held(n *livestate.Node) topology.Mask {
	var held topology.Mask
	for i := range n.GPUs {
		for _, h := range n.GPUs[i].Holders {
			if h.Device == "" && !h.Admin && x.own(h) {
				held = held.With(i)
			}
		}
	}
	return held
}

// describeAnswer says why a node cannot serve the demand.
func (x *explainer) describeAnswer(n *livestate.Node, a *fit.Answer, demands []*fit.Demand) string {
	var text string
	switch {
	case a.Short != nil:
		text = fmt.Sprintf("request %s asks for %d MIG devices, %d that match are free", a.Short.Request, a.Short.Wanted, a.Short.Have)
	case len(demands) > 0 && demands[0].Missing != nil && a.Reason == placement.ReasonTooFewEligible:
		m := demands[0].Missing
		text = fmt.Sprintf("request %s asks for %d, the node has %d that match", m.Request, m.Wanted, m.Have)
		if blocked := len(n.GPUs) - fit.Usable(n).Count(); blocked > 0 && m.Have > 0 {
			text += " (others are tainted, partitioned or missing)"
		}
	case a.Reason == placement.ReasonPolicyNow:
		text = fmt.Sprintf("no free GPUs are linked as %s: best now %s", ask.DescribePolicy(a.Policy), describeOffer(a.BestNow))
		text += "; if all were free " + describeOffer(a.BestWhenFree)
	case a.Reason == placement.ReasonPolicyNever:
		text = fmt.Sprintf("its GPUs are not linked as %s, even if all were free: the best are %s", ask.DescribePolicy(a.Policy), describeOffer(a.BestWhenFree))
	case a.Reason == placement.ReasonTooFewFree:
		text = fmt.Sprintf("asks for %d GPUs, %d have room", a.Wanted, a.Free)
	case a.Reason == placement.ReasonConstraint:
		text = "no set of its GPUs satisfies the constraints of the claim"
	default:
		text = a.Reason.String()
	}
	if len(demands) > 1 {
		text += "; no other alternative fits either"
	}
	return text
}

func describeOffer(o *fit.Offer) string {
	if o == nil {
		return "none"
	}
	return fmt.Sprintf("%s (GPUs %s)", status.FormatQuality(o.Quality), status.FormatGPUs(o.GPUs))
}

// tooMany adds the problem of a pod that wants more GPUs than any node has.
func (x *explainer) tooMany(p *Pending, choices [][]ask.Request) {
	least := 0
	for i, choice := range choices {
		biggest := 0
		for k := range choice {
			if !choice[k].All && !choice[k].Admin {
				biggest = max(biggest, choice[k].Count)
			}
		}
		if i == 0 || biggest < least {
			least = biggest
		}
	}
	most, where := 0, ""
	for i := range x.live {
		devices := len(x.live[i].Published)
		if devices > most {
			most, where = devices, x.live[i].Name
		}
	}
	switch {
	case least == 0:
	case most == 0:
		p.Problems = append(p.Problems, fmt.Sprintf("no GPUs are published by driver %q: check that its pods run on the GPU nodes", api.DriverName))
	case least > most:
		p.Problems = append(p.Problems, fmt.Sprintf("it asks for %d devices in one request, and no node has more than %d (%s): the GPUs of a pod are on one node; "+
			"spread the job over several pods that ask for at most %d each", least, most, where, most))
	}
}

// sortRefusals is for printing: nodes with one reason together, the most common first.
func sortRefusals(nodes []Refusal) [][]Refusal {
	var groups [][]Refusal
	for _, r := range nodes {
		at := slices.IndexFunc(groups, func(g []Refusal) bool { return g[0].Why == r.Why })
		if at < 0 {
			groups = append(groups, []Refusal{r})
			continue
		}
		groups[at] = append(groups[at], r)
	}
	slices.SortStableFunc(groups, func(a, b []Refusal) int { return cmp.Compare(len(b), len(a)) })
	return groups
}
