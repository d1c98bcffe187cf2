// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/driver/device"
)

// AllDevices is the target of what concerns every device of the node.
const AllDevices device.UUID = "*"

// State of a device's health.
type State string

// States.
const (
	Healthy   State = "Healthy"
	Unhealthy State = "Unhealthy"
	Unknown   State = "Unknown"
)

// worse orders states.
var worse = map[State]int{Healthy: 0, Unknown: 1, Unhealthy: 2}

// Finding is something wrong that was found.
type Finding struct {
	Kind Kind `json:"kind"`

	// Value tells it apart from others of its kind. It becomes the value of a
	// taint, which must be a label value.
	Value string `json:"value"`

	Severity Severity `json:"severity"`

	// State is what it makes of the device's health; "" is Healthy: what somebody
	// does with a GPU does not make it ill.
	State State `json:"state,omitempty"`

	// Message says what is wrong, Advice what to do, for people.
	Message string `json:"message"`
	Advice  string `json:"advice,omitempty"`
}

// Condition is a finding that holds.
type Condition struct {
	// Target is the UUID of a GPU or MIG device, or AllDevices.
	Target device.UUID `json:"target"`

	// Source is who found it. Only looks of the same source can end it.
	Source string `json:"source"`

	Finding

	// Since is when it began, LastSeen when it was last found.
	Since    time.Time `json:"since"`
	LastSeen time.Time `json:"lastSeen"`

	// Effect of its taint.
	Effect resourceapi.DeviceTaintEffect `json:"-"`

	clean int // looks since then that did not find it
}

// Taint of the condition.
func (c *Condition) Taint() resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{
		Key: Domain + string(c.Kind), Value: c.Value, Effect: c.Effect, TimeAdded: &metav1.Time{Time: c.Since.UTC().Truncate(time.Second)},
	}
}

// Change is a condition that has begun, has another value, or has ended.
type Change struct {
	Condition

	// Ended says that the condition does not hold any more.
	Ended bool
}

// id of a condition: a target has one of a kind.
type id struct {
	target device.UUID
	kind   Kind
}

// Saver keeps the ledger's content.
type Saver interface {
	Save(document *Document) error
}

// Ledger holds the conditions of the node's devices. It is safe for concurrent
// use.
type Ledger struct {
	policy Policy
	saver  Saver
	now    func() time.Time

	mu          sync.Mutex
	document    *Document
	conditions  map[id]*Condition
	cleanLooks  map[string]int
	subscribers []chan struct{}
	listeners   []func(Change)
	dirty       bool
	saveErr     error
}

// DefaultCleanLooks is how many looks in a row must not find a condition before
// it ends.
const DefaultCleanLooks = 3

// NewLedger continues with a document, which it owns from then on. saver may be
// nil; now may be nil for time.Now.
func NewLedger(policy Policy, document *Document, saver Saver, now func() time.Time) *Ledger {
	if now == nil {
		now = time.Now
	}
	l := &Ledger{policy: policy, saver: saver, now: now, document: document, conditions: map[id]*Condition{}, cleanLooks: map[string]int{}}
	for i := range document.Conditions {
		condition := document.Conditions[i]
		l.conditions[id{condition.Target, condition.Kind}] = &condition
	}
	return l
}

// SetCleanLooks says how many looks of a source in a row must not find a
// condition before it ends; at least 1.
func (l *Ledger) SetCleanLooks(source string, looks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanLooks[source] = max(looks, 1)
}

// Raise notes findings about a target. It is for events and for looks that could
// not see everything: nothing ends by it.
func (l *Ledger) Raise(source string, target device.UUID, findings ...Finding) {
	l.mu.Lock()
	changes := l.raise(source, target, findings)
	l.finish(changes)
}

// Look notes a look at a target that could see everything: findings hold, and what
// else the same source had found before comes closer to its end.
func (l *Ledger) Look(source string, target device.UUID, findings ...Finding) {
	l.mu.Lock()
	changes := l.raise(source, target, findings)
	for _, at := range l.ids() {
		condition := l.conditions[at]
		if at.target != target || condition.Source != source || slices.ContainsFunc(findings, func(f Finding) bool { return f.Kind == at.kind }) {
			continue
		}
		if condition.clean++; condition.clean >= cmp.Or(l.cleanLooks[source], DefaultCleanLooks) {
			changes = append(changes, l.end(at))
		}
	}
	l.finish(changes)
}

// LookAll is Look for many targets at once: targets of the source that are not in
// found have no findings. It is for sources that see all of their targets or none.
func (l *Ledger) LookAll(source string, found map[device.UUID][]Finding) {
	l.mu.Lock()
	targets := map[device.UUID]bool{}
	for target := range found {
		targets[target] = true
	}
	for at, condition := range l.conditions {
		if condition.Source == source {
			targets[at.target] = true
		}
	}
	l.mu.Unlock()
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		l.Look(source, target, found[target]...)
	}
}

// drop ends all conditions of sources that will not look any more.
func (l *Ledger) drop(sources ...string) {
	l.mu.Lock()
	var changes []Change
	for _, at := range l.ids() {
		if slices.Contains(sources, l.conditions[at].Source) {
			changes = append(changes, l.end(at))
		}
	}
	l.finish(changes)
}

// Forget ends all conditions of a target, which is gone for good.
func (l *Ledger) Forget(target device.UUID) {
	l.mu.Lock()
	var changes []Change
	for _, at := range l.ids() {
		if at.target == target {
			changes = append(changes, l.end(at))
		}
	}
	l.finish(changes)
}

// raise notes findings. The caller holds the lock.
func (l *Ledger) raise(source string, target device.UUID, findings []Finding) []Change {
	now := l.now()
	var changes []Change
	for _, finding := range findings {
		at := id{target, finding.Kind}
		old := l.conditions[at]
		if old != nil && old.Source == source && slices.Index(severities, finding.Severity) > slices.Index(severities, old.Severity) {
			// The worse one stays for as long as something of its kind is found.
			old.LastSeen, old.clean = now, 0
			continue
		}
		fresh := &Condition{Target: target, Source: source, Finding: finding, Since: now, LastSeen: now}
		if old != nil && l.effect(old) == l.effect(fresh) {
			fresh.Since = old.Since
		}
		l.conditions[at] = fresh
		if old == nil || old.Value != finding.Value || old.Severity != finding.Severity {
			l.dirty = true
			changes = append(changes, Change{Condition: l.withEffect(fresh)})
		}
	}
	return changes
}

// end removes a condition. The caller holds the lock.
func (l *Ledger) end(at id) Change {
	change := Change{Condition: l.withEffect(l.conditions[at]), Ended: true}
	delete(l.conditions, at)
	l.dirty = true
	return change
}

// finish saves and tells about changes, and releases the lock.
func (l *Ledger) finish(changes []Change) {
	l.save()
	listeners := slices.Clone(l.listeners)
	if len(changes) > 0 {
		for _, subscriber := range l.subscribers {
			select {
			case subscriber <- struct{}{}:
			default: // It has not come round to the last one yet.
			}
		}
	}
	l.mu.Unlock()
	for _, change := range changes {
		for _, listener := range listeners {
			listener(change)
		}
	}
}

// save writes what has changed; what could not be written is tried again with the
// next look. The caller holds the lock.
func (l *Ledger) save() {
	if !l.dirty || l.saver == nil {
		return
	}
	l.document.Conditions = l.sorted()
	if l.saveErr = l.saver.Save(l.document); l.saveErr == nil {
		l.dirty = false
	}
}

// SaveError is why the last change could not be written, or nil.
func (l *Ledger) SaveError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saveErr
}

// ids in order. The caller holds the lock.
func (l *Ledger) ids() []id {
	return slices.SortedFunc(maps.Keys(l.conditions), func(a, b id) int {
		return cmp.Or(cmp.Compare(a.target, b.target), cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)))
	})
}

// effect of a condition's taint.
func (l *Ledger) effect(c *Condition) resourceapi.DeviceTaintEffect {
	return l.policy.Effect(c.Kind, c.Severity)
}

// withEffect copies a condition and sets its effect.
func (l *Ledger) withEffect(c *Condition) Condition {
	out := *c
	out.Effect = l.effect(c)
	return out
}

// sorted returns the conditions in order. The caller holds the lock.
func (l *Ledger) sorted() []Condition {
	out := make([]Condition, 0, len(l.conditions))
	for _, at := range l.ids() {
		out = append(out, l.withEffect(l.conditions[at]))
	}
	return out
}

// Conditions returns what holds, in order of target and kind.
func (l *Ledger) Conditions() []Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted()
}

// Subscribe returns a channel that delivers after changes, one item for one or
// more, until stop is called.
func (l *Ledger) Subscribe() (changes <-chan struct{}, stop func()) {
	channel := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, channel)
	return channel, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.subscribers = slices.DeleteFunc(l.subscribers, func(other chan struct{}) bool { return other == channel })
	}
}

// Listen calls f for every change, in the goroutine that caused it.
func (l *Ledger) Listen(f func(Change)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(l.listeners, f)
}

// of returns what concerns a device: its own conditions, those of its parent and
// those of all devices; of each kind one, with the strongest effect. parent is ""
// for a GPU.
func (l *Ledger) of(uuid, parent device.UUID) []Condition {
	strongest := map[Kind]Condition{}
	for _, condition := range l.Conditions() {
		if condition.Target != uuid && condition.Target != AllDevices && (parent == "" || condition.Target != parent) {
			continue
		}
		old, there := strongest[condition.Kind]
		if !there || slices.Index(effects, condition.Effect) > slices.Index(effects, old.Effect) {
			strongest[condition.Kind] = condition
		}
	}
	var out []Condition
	for _, kind := range kinds {
		if condition, ok := strongest[kind]; ok {
			out = append(out, condition)
		}
	}
	return out
}

// Taints of a device, in a stable order; of each key one. parent is "" for a GPU.
func (l *Ledger) Taints(uuid, parent device.UUID) []resourceapi.DeviceTaint {
	var out []resourceapi.DeviceTaint
	for _, condition := range l.of(uuid, parent) {
		out = append(out, condition.Taint())
	}
	return out
}

// Health of a device, and why.
func (l *Ledger) Health(uuid, parent device.UUID) (State, string) {
	state, message := Healthy, ""
	for _, condition := range l.of(uuid, parent) {
		if condition.State != "" && worse[condition.State] > worse[state] {
			state, message = condition.State, condition.Message+"; "+condition.Advice
		}
	}
	return state, message
}

// check reports what cannot be a condition.
func (c *Condition) check() error {
	switch {
	case c.Target == "":
		return errors.New("a condition has no target")
	case !slices.Contains(kinds, c.Kind):
		return fmt.Errorf("condition of %q is of unknown kind %q", c.Target, c.Kind)
	case !slices.Contains(severities, c.Severity):
		return fmt.Errorf("condition %q of %q has unknown severity %q", c.Kind, c.Target, c.Severity)
	case worse[c.State] == 0 && c.State != "" && c.State != Healthy:
		return fmt.Errorf("condition %q of %q has unknown state %q", c.Kind, c.Target, c.State)
	case !isLabelValue(c.Value):
		return fmt.Errorf("condition %q of %q has value %q, which cannot be that of a taint", c.Kind, c.Target, c.Value)
	}
	return nil
}

// holds says whether a target has a condition of one of the kinds.
func (l *Ledger) holds(target device.UUID, kinds ...Kind) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(kinds, func(kind Kind) bool { return l.conditions[id{target, kind}] != nil })
}

// known lists the GPUs that were there in this boot, in order.
func (l *Ledger) known() []device.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.document.Known))
}

// assess compares an observation with the GPU's baseline and keeps the next one.
func (l *Ledger) assess(o *Observation) []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.document.Baselines[o.UUID]
	findings, next := Assess(o, before)
	if next != before {
		l.document.Baselines[o.UUID] = next
		l.dirty = true
	}
	return findings
}

// complete is Monitor.Complete for the snapshot. Without keep, GPUs that are
// missing are forgotten.
func (l *Ledger) complete(snapshot *device.Snapshot, keep bool) (full *device.Snapshot, missing []device.UUID) {
	l.mu.Lock()
	full, missing, replaced := complete(snapshot, l.document.Known)
	if !keep {
		full, missing, replaced = snapshot, nil, append(replaced, missing...)
	}
	for _, uuid := range replaced {
		delete(l.document.Known, uuid)
		delete(l.document.Baselines, uuid)
		l.dirty = true
	}
	if len(snapshot.GPUs) > 0 && learn(snapshot, l.document.Known) {
		l.dirty = true
	}
	var changes []Change
	for _, at := range l.ids() {
		// What is not published any more has no health.
		if at.target != AllDevices && !published(full, at.target) {
			changes = append(changes, l.end(at))
		}
	}
	l.finish(changes)
	return full, missing
}

// published says whether a snapshot has a GPU or MIG device.
func published(snapshot *device.Snapshot, uuid device.UUID) bool {
	return slices.ContainsFunc(snapshot.GPUs, func(gpu device.GPU) bool {
		return gpu.UUID == uuid || slices.ContainsFunc(gpu.MIGDevices, func(mig device.MIGDevice) bool { return mig.UUID == uuid })
	})
}
