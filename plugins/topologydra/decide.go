// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/lru"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// maxDecisions is how many decisions are remembered.
const maxDecisions = 1 << 14

// nodePlanner decides what to do on one node for one demand. It is safe for
// concurrent use for different nodes.
type nodePlanner struct {
	matcher       *kube.Matcher
	fabrics       *fabricReader
	planner       *placement.Planner
	maxCandidates int
	askAlways     bool
	budget        time.Duration
	memo          *lru.Cache
}

// newNodePlanner makes a planner with an empty memo.
func newNodePlanner(args *api.TopologyDynamicResourcesArgs, options Options, matcher *kube.Matcher) (*nodePlanner, error) {
	planner, err := placement.New(plannerOptions(args))
	if err != nil {
		return nil, fmt.Errorf("configuring the planner: %w", err)
	}
	return &nodePlanner{
		matcher:       matcher,
		fabrics:       &fabricReader{args: args, options: options, classes: quality.NewCache(0, quality.Options{}), planner: planner},
		planner:       planner,
		maxCandidates: int(*args.MaxCandidates),
		askAlways:     options.AskAlways,
		budget:        args.PlanBudget.Duration,
		memo:          lru.New(maxDecisions),
	}, nil
}

// arrangement is an order for the devices of one pool.
type arrangement struct {
	// pool is the index of the pool on its node.
	pool int
	// devices are indices into the pool's devices, the first ones to look at.
	devices []int
	// hide all other devices.
	hide bool
	// obstacle says why they are not hidden although there is a guarantee.
	obstacle string
}

// decision is what to do on a node. It is immutable and may be remembered: it
// names nothing that belongs to one pod.
type decision struct {
	// arrangements are empty when the allocator chooses alone.
	arrangements []arrangement
	// fallback says why the allocator chooses alone; a metric label.
	fallback string
	// hopeless says that the allocator would find nothing.
	hopeless bool
	// refusal is set, with a reason for the status, when a guarantee cannot be
	// kept.
	refusal *plan.Refusal
	reason  string
	// guaranteed says that some policy is a guarantee, wanted which. Without
	// arrangements the allocator's choice is then not acceptable.
	guaranteed bool
	wanted     string
	// deviates says that the allocator will not take the planned set.
	deviates bool
	// settled says that the allocator was asked with everything that it will be
	// given, so that its answer is known: asking it again on this node can wait
	// until the node is chosen.
	settled bool
	// expected are the results that the allocator will have, by claim.
	expected [][]resourceapi.DeviceRequestAllocationResult
	offer    *plan.Offer
	// speaker is the index of the problem that the offer describes.
	speaker int
}

// question is everything that a decision depends on.
type question struct {
	view   *kube.View
	oracle *kube.Oracle
	node   *kube.Node
	object *v1.Node
	demand *demand
	// oracleTimeout limits one question to the oracle, 0 is no limit.
	oracleTimeout time.Duration
}

// memoKey identifies a question.
type memoKey struct {
	node      *kube.Node
	allocated kube.Fingerprint
	demand    demandKey
}

// decide answers a question, from memory if it was asked before. Decisions that
// may depend on devices outside the node are not remembered.
func (p *nodePlanner) decide(ctx context.Context, q *question) (*decision, error) {
	start := time.Now()
	defer func() { plan.Seconds.Observe(time.Since(start).Seconds()) }()
	key := memoKey{q.node, q.view.Fingerprint(q.node), q.demand.key}
	if known, ok := p.memo.Get(key); ok {
		if d, ok := known.(*decision); ok {
			plan.MemoHits.Inc()
			return d, nil
		}
	}
	d, lasting, err := p.think(ctx, q)
	if err != nil {
		return nil, err
	}
	if lasting && !q.view.HasShared() && !q.node.Spread() {
		p.memo.Add(key, d)
	}
	return d, nil
}

// distrust makes sure that the allocator is asked again for a question whose
// remembered answer turned out to be wrong.
func (p *nodePlanner) distrust(q *question, d *decision) {
	doubtful := *d
	doubtful.settled = false
	p.memo.Add(memoKey{q.node, q.view.Fingerprint(q.node), q.demand.key}, &doubtful)
}

// think tries the combinations of alternatives in the allocator's order. lasting
// is false when the decision was cut short by time. An error means that the
// context ended.
func (p *nodePlanner) think(ctx context.Context, q *question) (d *decision, lasting bool, err error) {
	choices, complete := q.demand.choices()
	if !complete {
		return &decision{fallback: fallbackAlternatives, guaranteed: q.demand.strict(), wanted: q.demand.wanted()}, true, nil
	}
	if !p.askAlways && !q.demand.guaranteed() && p.hopeless(ctx, q, choices) {
		return &decision{hopeless: true, fallback: fallbackNoFit}, true, nil
	}
	for _, pool := range q.node.Pools {
		p.fabrics.of(ctx, pool) // decoding is not part of the budget
	}
	budget, cancel := p.withBudget(ctx, q)
	defer cancel()
	self := !q.view.HasShared() && !q.node.Spread()
	var refused *decision
	fallback := fallbackNoDevices
	for preference, items := range choices {
		answer, err := p.tryChoice(budget, q, items)
		if err != nil {
			return p.cutShort(ctx, q, err)
		}
		switch {
		case answer.arrangements != nil:
			answer.offer.Preference = preference
			answer.settled = len(choices) == 1 && self
			return answer, true, nil
		case answer.refusal != nil:
			refused = answer
		default:
			fallback = answer.fallback
		}
	}
	if refused != nil {
		return refused, true, nil
	}
	return &decision{fallback: fallback, guaranteed: q.demand.strict(), wanted: q.demand.wanted()}, true, nil
}

// withBudget limits the time for one node. Guarantees may take as long as the
// allocator itself.
func (p *nodePlanner) withBudget(ctx context.Context, q *question) (context.Context, context.CancelFunc) {
	switch {
	case !q.demand.guaranteed():
		return context.WithTimeout(ctx, p.budget)
	case q.oracleTimeout > 0:
		return context.WithTimeout(ctx, max(p.budget, q.oracleTimeout))
	default:
		return context.WithCancel(ctx)
	}
}

// cutShort turns an error into a decision, unless the caller gave up.
func (p *nodePlanner) cutShort(ctx context.Context, q *question, err error) (*decision, bool, error) {
	if ctx.Err() != nil {
		return nil, false, fmt.Errorf("planning node %q: %w", q.node.Name, context.Cause(ctx))
	}
	reason := fallbackPlanner
	var failure *stepError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		reason = fallbackBudget
	case errors.As(err, &failure):
		reason = failure.fallback
	}
	return &decision{fallback: reason, guaranteed: q.demand.strict(), wanted: q.demand.wanted()}, false, nil
}

// stepError says which step of planning failed.
type stepError struct {
	fallback string
	err      error
}

func (e *stepError) Error() string { return e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// tryChoice plans one combination of alternatives.
func (p *nodePlanner) tryChoice(ctx context.Context, q *question, items []item) (*decision, error) {
	problems, reason, err := p.newProblems(ctx, q.view, q.node, q.demand, items)
	if err != nil {
		return nil, &stepError{fallbackSelector, err}
	}
	if reason != "" {
		return &decision{fallback: reason}, nil
	}
	problems = slices.DeleteFunc(problems, (*problem).ignored)
	if len(problems) == 0 {
		return &decision{fallback: fallbackNoDevices}, nil
	}
	var answers []*solutions
	for _, pr := range problems {
		answer, err := p.solve(ctx, q.demand, pr)
		if err != nil {
			return nil, &stepError{fallbackPlanner, err}
		}
		if len(answer.list) == 0 {
			if answer.guaranteed {
				return &decision{refusal: answer.refusal, reason: reasonText(answer.reason), guaranteed: true}, nil
			}
			return &decision{fallback: fallbackNoFit}, nil
		}
		answers = append(answers, answer)
	}
	return p.verify(ctx, q, items, problems, answers)
}

// verify looks for the best candidate that the allocator follows. Without one, a
// preference takes the best of what the allocator does instead.
func (p *nodePlanner) verify(ctx context.Context, q *question, items []item, problems []*problem, answers []*solutions) (*decision, error) {
	guaranteed := q.demand.guaranteed()
	candidates := 0
	for _, answer := range answers {
		candidates = max(candidates, len(answer.list))
	}
	var best *decision
	for k := range candidates {
		c := &candidate{question: q, items: items, problems: problems, guaranteed: guaranteed}
		for _, answer := range answers {
			c.solutions = append(c.solutions, &answer.list[min(k, len(answer.list)-1)])
		}
		d, err := p.ask(ctx, c)
		if err != nil {
			return nil, &stepError{fallbackOracle, err}
		}
		if d == nil {
			continue
		}
		if first := answers[d.speaker].list[0].quality; quality.Compare(first, d.offer.Quality) > 0 {
			d.offer.BestOfNode = first
		}
		if !d.deviates {
			return d, nil
		}
		if best == nil || quality.Compare(d.offer.Quality, best.offer.Quality) > 0 {
			best = d
		}
	}
	switch {
	case best != nil:
		return best, nil
	case guaranteed:
		return &decision{refusal: &plan.Refusal{Wanted: q.demand.wanted()}, reason: reasonUnknown, guaranteed: true}, nil
	default:
		return &decision{fallback: fallbackNoFit}, nil
	}
}

// candidate is one solution per problem.
type candidate struct {
	*question
	items      []item
	problems   []*problem
	solutions  []*solution
	guaranteed bool
}

// ask lets the allocator choose with the candidate's devices in front. The answer
// is nil when it finds nothing or breaks a guarantee.
func (p *nodePlanner) ask(ctx context.Context, c *candidate) (*decision, error) {
	d := &decision{guaranteed: c.guaranteed, arrangements: c.arrangements()}
	if c.oracleTimeout > 0 {
		limited, cancel := context.WithTimeout(ctx, c.oracleTimeout)
		defer cancel()
		ctx = limited
	}
	d.apply(c.node)
	defer c.node.Restore()
	plan.OracleCalls.Inc()
	results, err := c.oracle.Allocate(ctx, c.object, c.demand.resourceClaims())
	if err != nil || results == nil {
		return nil, err
	}
	for i := range results {
		d.expected = append(d.expected, results[i].Devices.Results)
	}
	if !c.judge(d) {
		return nil, nil
	}
	return d, nil
}

// apply arranges the node's pools. Only pools without obstacles are planned.
func (d *decision) apply(node *kube.Node) {
	for _, a := range d.arrangements {
		node.Pools[a.pool].Arrange(a.devices, a.hide)
	}
}

// arrangements puts the devices of each item in front, in the allocator's order.
func (c *candidate) arrangements() []arrangement {
	arrangements := make([]arrangement, 0, len(c.problems))
	for i, pr := range c.problems {
		a := arrangement{pool: slices.Index(c.node.Pools, pr.pool)}
		for _, set := range c.solutions[i].perItem {
			for position := range set.All() {
				if device := pr.fabric.device[position]; !slices.Contains(a.devices, device) {
					a.devices = append(a.devices, device)
				}
			}
		}
		if c.guaranteed {
			a.obstacle = c.hideObstacle(pr)
			a.hide = a.obstacle == ""
		}
		arrangements = append(arrangements, a)
	}
	return arrangements
}

// hideObstacle says why devices that are not in the candidate have to stay
// visible: then only the order and the allocator's answer keep the guarantee.
func (c *candidate) hideObstacle(pr *problem) string {
	switch {
	case pr.pool.Hide != kube.NoObstacle:
		return string(pr.pool.Hide)
	case slices.ContainsFunc(c.items, func(it item) bool { return it.All }):
		// Hiding would change what "all" means.
		return obstacleAll
	case slices.ContainsFunc(c.items, func(it item) bool { return it.Admin }):
		return obstacleAdmin
	case pr.others:
		return obstacleOthers
	default:
		return ""
	}
}

// judge compares the allocator's results with the candidate and fills in the
// offer. It returns false when a guarantee is broken.
func (c *candidate) judge(d *decision) bool {
	d.offer = &plan.Offer{}
	for i, pr := range c.problems {
		perItem := c.realised(pr, d.expected)
		if !pr.accepts(perItem) {
			return false
		}
		var gpus topology.Mask
		for _, set := range perItem {
			gpus |= set
		}
		s := c.solutions[i]
		if gpus != s.gpus {
			d.deviates = true
		}
		if c.guaranteed && !pr.complete(perItem) || gpus == 0 {
			// The allocator took other alternatives than those that were planned.
			return false
		}
		offer := plan.Offer{
			GPUs: gpus, Quality: pr.fabric.class.Of(gpus | pr.held), Communicates: s.communicates,
			DeltaV: s.deltaV, AllocatedPermille: placement.AllocatedPermille(pr.inventory,
				placement.Demand{Requests: pr.requests}, placement.Set{GPUs: gpus, PerRequest: perItem}),
		}
		if i == 0 || c.speaksBefore(i, &offer, d.speaker, d.offer) {
			*d.offer, d.speaker = offer, i
		}
	}
	d.offer.BestOfNode = d.offer.Quality
	return true
}

// speaksBefore says which of two problems' sets stands for the pod when nodes are
// ranked: one that exchanges data, then one of our own driver, then the larger.
func (c *candidate) speaksBefore(i int, a *plan.Offer, j int, b *plan.Offer) bool {
	if a.Communicates != b.Communicates {
		return a.Communicates
	}
	own := func(i int) bool { return c.problems[i].pool.Driver == api.DriverName }
	if own(i) != own(j) {
		return own(i)
	}
	return a.GPUs.Count() > b.GPUs.Count()
}

// realised returns the GPUs that the results give to each item of a problem. An
// item whose request got another alternative has none.
func (c *candidate) realised(pr *problem, expected [][]resourceapi.DeviceRequestAllocationResult) []topology.Mask {
	perItem := make([]topology.Mask, len(pr.items))
	for i, it := range pr.items {
		for r := range expected[it.claim] {
			result := &expected[it.claim][r]
			if result.Request != it.Name || result.Driver != pr.pool.Driver || result.Pool != pr.pool.Name {
				continue
			}
			device := slices.IndexFunc(pr.pool.Devices, func(d kube.Device) bool { return d.Name == result.Device })
			if device >= 0 && pr.fabric.position[device] >= 0 {
				perItem[i] = perItem[i].With(pr.fabric.position[device])
			}
		}
	}
	return perItem
}

// complete says whether every item has its number of GPUs.
func (pr *problem) complete(perItem []topology.Mask) bool {
	for i := range perItem {
		if perItem[i].Count() != pr.requests[i].Count {
			return false
		}
	}
	return true
}
