// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Typical is a kind of claim that is expected to come. The values V and ΔV ask how
// many of them still fit, and how well.
type Typical struct {
	// GPUs is the number of distinct GPUs, at least 1.
	GPUs int
	// Use is what one of them needs when the claim shares its GPUs; the zero value
	// stands for whole GPUs.
	Use Capacity
	// Weight says how typical the claim is. Only the ratio of the weights counts.
	Weight int64
}

func (t Typical) whole() bool { return t.Use == Capacity{} }

// DefaultMix returns the typical claims that are assumed when nothing else is
// known: whole GPUs, 1 : 2 : 4 : 8 with the weights 50 : 22 : 20 : 8. It is the
// mix of the measurements in docs/objective.md.
func DefaultMix() []Typical {
	return []Typical{
		{GPUs: 1, Weight: 50},
		{GPUs: 2, Weight: 22},
		{GPUs: 4, Weight: 20},
		{GPUs: 8, Weight: 8},
	}
}

// Defaults of [Options].
const (
	DefaultMaxSets   = 8
	DefaultMemoSize  = 1 << 14
	DefaultMaxSearch = 20_000
)

// MostSets is the largest Options.MaxSets.
const MostSets = 4096

// Limits of [Options].
const (
	maxMixWeight = 1_000_000
	maxMix       = 64
)

// Options of a [Planner]. The zero value gives the defaults.
type Options struct {
	// Mix are the typical claims; nil is [DefaultMix].
	Mix []Typical
	// TierPercent is how much slower than the best a set of the same tier may be,
	// 1 to 99; 0 is quality.DefaultTierPercent. A negative value makes every
	// difference a tier of its own.
	TierPercent int
	// MaxSets bounds Result.Sets; 0 is DefaultMaxSets.
	MaxSets int
	// MemoSize bounds the number of remembered answers; 0 is DefaultMemoSize,
	// negative switches the memo off.
	MemoSize int
	// MaxSearch bounds the steps of the search for an assignment of the requests
	// to one union of GPUs, and 50 times that all unions of a question; 0 is
	// DefaultMaxSearch. A result that ran into a bound is not Exact.
	MaxSearch int
}

// withDefaults checks the options and fills them in.
func (o Options) withDefaults() (Options, error) {
	if o.Mix == nil {
		o.Mix = DefaultMix()
	}
	if len(o.Mix) > maxMix {
		return o, fmt.Errorf("checking planner options: mix: %d typical claims, the limit is %d", len(o.Mix), maxMix)
	}
	for i, t := range o.Mix {
		if err := t.validate(); err != nil {
			return o, fmt.Errorf("checking planner options: mix: entry %d: %w", i, err)
		}
	}
	switch {
	case o.TierPercent == 0:
		o.TierPercent = quality.DefaultTierPercent
	case o.TierPercent < 0:
		o.TierPercent = 0
	case o.TierPercent > 99:
		return o, fmt.Errorf("checking planner options: tier percent %d is above 99", o.TierPercent)
	}
	if o.MaxSets == 0 {
		o.MaxSets = DefaultMaxSets
	}
	if o.MaxSets < 1 || o.MaxSets > MostSets {
		return o, fmt.Errorf("checking planner options: max sets %d is not in 1..%d", o.MaxSets, MostSets)
	}
	if o.MemoSize == 0 {
		o.MemoSize = DefaultMemoSize
	}
	if o.MaxSearch == 0 {
		o.MaxSearch = DefaultMaxSearch
	}
	if o.MaxSearch < 0 {
		return o, errors.New("checking planner options: max search is negative")
	}
	return o, nil
}

func (t Typical) validate() error {
	if t.GPUs < 1 || t.GPUs > topology.MaxGPUs {
		return fmt.Errorf("%d GPUs is not in 1..%d", t.GPUs, topology.MaxGPUs)
	}
	if t.Weight < 1 || t.Weight > maxMixWeight {
		return fmt.Errorf("weight %d is not in 1..%d", t.Weight, maxMixWeight)
	}
	if t.Use.MemoryMiB < 0 || t.Use.CoresPercent < 0 || t.Use.Slots < 0 {
		return errors.New("the use of a GPU is negative")
	}
	return nil
}
