// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
)

// Discipline says what a waiting job that does not fit does to those behind it.
type Discipline int

// The disciplines.
const (
	// Skip lets the others pass, like kube-scheduler.
	Skip Discipline = iota
	// FIFO makes them wait.
	FIFO
)

// Config describes a run.
type Config struct {
	Cluster *model.Cluster
	// Jobs in order of arrival.
	Jobs   []model.Job
	Policy policy.Policy
	Queue  Discipline
	// Bandwidth makes run times depend on links, see model.RunTime.
	Bandwidth bool
	// WarmUp is how many of the first jobs are left out of all measurements, in
	// percent. The last ones count: the run goes on until all jobs have ended.
	WarmUp int
	// Typical are the demands by which stranded capacity is measured; none, and it is
	// not measured.
	Typical []model.Typical
	// Best remembers what empty nodes can do; nil makes a memory for this run.
	Best *model.Best
	// Audit recomputes all capacity after every event.
	Audit bool
	// Progress is called now and then with the number of jobs that are done; it may
	// be nil.
	Progress func(done int)
}

// Outcome is what became of a job.
type Outcome struct {
	// Started and Ended are moments of virtual time; both are -1 when the job does
	// not fit the empty cluster.
	Started, Ended model.Millis
	// Places of its pods, in order.
	Places []model.Place
	links  links
}

// Placed reports whether the job ever ran.
func (o *Outcome) Placed() bool { return o.Started >= 0 }

// state is a run in progress.
type state struct {
	Config
	events   events
	now      model.Millis
	waiting  []int // jobs, in order of arrival
	untried  int   // from this one on they have not been tried since something was freed
	freed    bool  // something was freed since the last attempt
	outcomes []Outcome
	running  map[int]bool
	gauge    *gauge
	timer    timer
	done     int
	links    *linkMeter
	failed   map[attempt]bool
}

// attempt is what decides whether a job fits: equal ones fail together.
type attempt struct {
	demand model.Demand
	pods   int
}

// Run lets all jobs pass. An error means that the configuration or a policy is
// wrong, or that the context ended.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	s, err := newState(cfg)
	if err != nil {
		return nil, err
	}
	for i := range s.Jobs {
		s.events.add(event{s.Jobs[i].Arrival, arrives, i})
	}
	for s.events.Len() > 0 {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("running the simulation: %w", err)
		}
		if err := s.moment(); err != nil {
			return nil, fmt.Errorf("running the simulation at %.3f s: %w", s.now.Seconds(), err)
		}
	}
	return s.result(), nil
}

func newState(cfg Config) (*state, error) {
	if cfg.Cluster == nil || cfg.Policy == nil {
		return nil, fmt.Errorf("starting a simulation: cluster and policy are needed")
	}
	if cfg.WarmUp < 0 || cfg.WarmUp > 99 {
		return nil, fmt.Errorf("starting a simulation: a warm-up of %d percent is not in 0..99", cfg.WarmUp)
	}
	if cfg.Best == nil {
		cfg.Best = model.NewBest()
	}
	for i := range cfg.Jobs {
		if err := cfg.Jobs[i].Validate(); err != nil {
			return nil, fmt.Errorf("starting a simulation: %w", err)
		}
		if i > 0 && cfg.Jobs[i].Arrival < cfg.Jobs[i-1].Arrival {
			return nil, fmt.Errorf("starting a simulation: job %q arrives before the one in front of it", cfg.Jobs[i].Name)
		}
	}
	s := &state{Config: cfg, outcomes: make([]Outcome, len(cfg.Jobs)), running: map[int]bool{}, failed: map[attempt]bool{}}
	for i := range s.outcomes {
		s.outcomes[i].Started, s.outcomes[i].Ended = -1, -1
	}
	s.links = newLinkMeter(cfg.Cluster, cfg.Best)
	from, to := window(cfg.Jobs, cfg.WarmUp)
	s.gauge = newGauge(cfg.Cluster, cfg.Typical, from, to)
	return s, nil
}

// window returns the time in which the cluster is measured: from the first job that
// counts to the last arrival.
func window(jobs []model.Job, warmUp int) (from, to model.Millis) {
	if len(jobs) == 0 {
		return 0, 0
	}
	return jobs[firstCounted(len(jobs), warmUp)].Arrival, jobs[len(jobs)-1].Arrival
}

func firstCounted(jobs, warmUp int) int { return jobs * warmUp / 100 }

// moment handles all events of the next moment and then tries waiting jobs.
func (s *state) moment() error {
	s.now = s.events.list[0].at
	s.gauge.advance(s.now)
	for s.events.Len() > 0 && s.events.list[0].at == s.now {
		switch e := s.events.next(); e.kind {
		case ends:
			s.end(e.job)
		case arrives:
			s.waiting = append(s.waiting, e.job)
		}
		if err := s.audit(); err != nil {
			return err
		}
	}
	if err := s.tryWaiting(); err != nil {
		return err
	}
	if s.events.Len() == 0 && len(s.waiting) > 0 {
		// Nothing runs and nothing will come: what still waits never fits.
		s.done += len(s.waiting)
		s.waiting = nil
	}
	return nil
}

// tryWaiting starts what can start, in order of arrival.
func (s *state) tryWaiting() error {
	from := s.untried
	if s.freed {
		from = 0
		clear(s.failed)
	}
	if s.Queue == FIFO && from > 0 {
		return nil // the first one did not fit, and nothing was freed since
	}
	kept := s.waiting[:from]
	for i := from; i < len(s.waiting); i++ {
		job := s.waiting[i]
		started, err := s.try(job)
		if err != nil {
			return err
		}
		if !started {
			if s.Queue == FIFO {
				kept = append(kept, s.waiting[i:]...)
				break
			}
			kept = append(kept, job)
		}
	}
	s.waiting = kept
	s.untried = len(kept)
	s.freed = false
	return nil
}

// try places all pods of a job, or none.
func (s *state) try(job int) (bool, error) {
	j := &s.Jobs[job]
	key := attempt{j.Demand, j.Pods}
	if s.failed[key] {
		return false, nil
	}
	places, err := s.place(j)
	if err != nil {
		return false, fmt.Errorf("job %q: %w", j.Name, err)
	}
	if places == nil {
		s.failed[key] = true
		return false, nil
	}
	s.start(job, places)
	return true, s.audit()
}

// place takes GPUs for all pods. Nil means that one of them found no room.
func (s *state) place(j *model.Job) ([]model.Place, error) {
	places := make([]model.Place, 0, j.Pods)
	for range j.Pods {
		p, ok, err := s.timer.place(s.Policy, s.Cluster, j.Demand)
		if err == nil && ok {
			err = s.Cluster.Take(j.Demand, p)
		}
		if err != nil {
			return nil, fmt.Errorf("policy %q: %w", s.Policy.Name(), err)
		}
		if !ok {
			for _, p := range places {
				s.Cluster.Release(j.Demand, p)
			}
			return nil, nil
		}
		places = append(places, p)
	}
	return places, nil
}

func (s *state) start(job int, places []model.Place) {
	j, o := &s.Jobs[job], &s.outcomes[job]
	o.Started, o.Places, o.links = s.now, places, s.links.measure(j, places)
	duration := j.Duration
	if s.Bandwidth {
		duration = model.RunTime(j.Duration, j.SlowPermille, o.links.bestNode, o.links.got)
	}
	o.Ended = s.now + duration
	s.running[job] = true
	s.gauge.touch(places)
	s.events.add(event{o.Ended, ends, job})
}

func (s *state) end(job int) {
	o := &s.outcomes[job]
	for _, p := range o.Places {
		s.Cluster.Release(s.Jobs[job].Demand, p)
	}
	s.gauge.touch(o.Places)
	delete(s.running, job)
	s.freed = true
	s.done++
	if s.Progress != nil && s.done%progressEvery == 0 {
		s.Progress(s.done)
	}
}

// progressEvery is how many jobs pass between two calls of Config.Progress.
const progressEvery = 500

// audit recomputes all capacity, if that is wanted.
func (s *state) audit() error {
	if !s.Audit {
		return nil
	}
	var held []model.Held
	for job := range s.running {
		for _, p := range s.outcomes[job].Places {
			held = append(held, model.Held{Demand: s.Jobs[job].Demand, Place: p})
		}
	}
	return s.Cluster.Check(held)
}

// eventKind orders events of one moment.
type eventKind int

const (
	ends eventKind = iota
	arrives
)

type event struct {
	at   model.Millis
	kind eventKind
	job  int
}

func (a event) compare(b event) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.job, b.job))
}

// events is a heap, the next one first.
type events struct{ list []event }

func (e *events) add(ev event) { heap.Push(e, ev) }

func (e *events) next() event {
	first := e.list[0]
	heap.Pop(e)
	return first
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (e *events) Len() int           { return len(e.list) }
func (e *events) Less(i, j int) bool { return e.list[i].compare(e.list[j]) < 0 }
func (e *events) Swap(i, j int)      { e.list[i], e.list[j] = e.list[j], e.list[i] }

// Push appends an event.
func (e *events) Push(x any) {
	if ev, ok := x.(event); ok {
		e.list = append(e.list, ev)
	}
}

// Pop removes the last event.
func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = slices.Delete(e.list, len(e.list)-1, len(e.list))
	return last
}
