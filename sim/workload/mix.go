// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/topodra/topodra/sim/model"
)

// Kind is one kind of job of a [Mix].
type Kind struct {
	// Pods of a job, GPUs of a pod.
	Pods, GPUs int
	// MemoryMilli and CoresPercent are what a pod takes of each GPU.
	MemoryMilli, CoresPercent int64
	// Weight says how frequent the kind is.
	Weight int
}

// Mix describes generated jobs:
//
//   - arrivals are a Poisson process whose rate makes the GPU time that arrives Load
//     times the GPU time that there is;
//   - the kind of a job is drawn by weight;
//   - run times are exponential, whatever the kind;
//   - of the jobs with several GPUs per pod, SensitivePercent communicate; their slow-down is drawn from
//     model.SensitiveProfiles, that of the others from model.InsensitiveProfiles.
//
// Each of these has a random sequence of its own, so that changing one leaves the
// others as they are.
type Mix struct {
	Kinds            []Kind
	SensitivePercent int
	// Load is the part of all GPU time that is asked for, above 0.
	Load float64
	// MeanRun is the mean run time with the best links.
	MeanRun model.Millis
	// Jobs is how many there are.
	Jobs int
}

// WholeKinds are whole GPUs in one pod: 1, 2, 4 and 8 with the weights 50, 22, 20
// and 8. It is the mix that TopoDRA expects by default.
func WholeKinds() []Kind {
	whole := func(gpus, weight int) Kind { return Kind{1, gpus, model.WholeMilli, model.WholeCores, weight} }
	return []Kind{whole(1, 50), whole(2, 22), whole(4, 20), whole(8, 8)}
}

// SharedKinds are WholeKinds with shares and jobs of several pods besides: half of
// the single GPUs are shares of a half, a quarter or a tenth; there are pairs of
// shared GPUs; and there are jobs of two and four pods.
func SharedKinds() []Kind {
	return []Kind{
		{1, 1, model.WholeMilli, model.WholeCores, 25},
		{1, 1, 500, 50, 12}, {1, 1, 250, 25, 8}, {1, 1, 100, 10, 8},
		{1, 2, 500, 50, 5},
		{1, 2, model.WholeMilli, model.WholeCores, 14}, {1, 4, model.WholeMilli, model.WholeCores, 14},
		{1, 8, model.WholeMilli, model.WholeCores, 6},
		{4, 1, model.WholeMilli, model.WholeCores, 3}, {2, 4, model.WholeMilli, model.WholeCores, 3},
		{2, 8, model.WholeMilli, model.WholeCores, 2},
	}
}

// Generate makes the jobs for a cluster with a number of GPUs.
func (m Mix) Generate(gpus int64, seed uint64) ([]model.Job, error) {
	total, work, err := m.check(gpus)
	if err != nil {
		return nil, fmt.Errorf("generating jobs: %w", err)
	}
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	gaps, kinds, runs, talks, profiles := stream(1), stream(2), stream(3), stream(4), stream(5)
	// Mean time between two arrivals, in milliseconds.
	gap := work / float64(total) * float64(m.MeanRun) / (m.Load * float64(gpus))
	at := 0.0
	jobs := make([]model.Job, 0, m.Jobs)
	for i := range m.Jobs {
		at += float64(gaps.ExpFloat64() * gap)
		k := m.draw(kinds.IntN(total))
		j := model.Job{
			Name: fmt.Sprintf("job-%06d", i), Arrival: model.Millis(at), Pods: k.Pods,
			Duration: model.Millis(math.Ceil(runs.ExpFloat64() * float64(m.MeanRun))),
			Demand:   model.Demand{GPUs: k.GPUs, MemoryMilli: k.MemoryMilli, CoresPercent: k.CoresPercent},
		}
		sensitive, profile := talks.IntN(100) < m.SensitivePercent, profiles.Uint64()
		if k.GPUs > 1 {
			table := model.InsensitiveProfiles
			if sensitive {
				table = model.SensitiveProfiles
			}
			j.Demand.Communicates, j.SlowPermille = sensitive, table[profile%uint64(len(table))]
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// draw returns the kind at a point of the sum of weights.
func (m Mix) draw(point int) Kind {
	for _, k := range m.Kinds {
		if point < k.Weight {
			return k
		}
		point -= k.Weight
	}
	return m.Kinds[len(m.Kinds)-1]
}

// check returns the sum of the weights and of weight times GPUs.
func (m Mix) check(gpus int64) (total int, work float64, err error) {
	switch {
	case len(m.Kinds) == 0:
		return 0, 0, errors.New("there are no kinds of jobs")
	case !(m.Load > 0) || math.IsInf(m.Load, 1):
		return 0, 0, fmt.Errorf("load %v is not above 0", m.Load)
	case m.MeanRun < 1 || m.Jobs < 0 || gpus < 1:
		return 0, 0, fmt.Errorf("%d jobs of %d ms on %d GPUs make no sense", m.Jobs, m.MeanRun, gpus)
	case m.SensitivePercent < 0 || m.SensitivePercent > 100:
		return 0, 0, fmt.Errorf("%d percent of sensitive jobs is not in 0..100", m.SensitivePercent)
	}
	for i, k := range m.Kinds {
		job := model.Job{Name: fmt.Sprintf("kind %d", i), Pods: k.Pods, Demand: model.Demand{GPUs: k.GPUs, MemoryMilli: k.MemoryMilli, CoresPercent: k.CoresPercent}}
		if err := job.Validate(); err != nil {
			return 0, 0, err
		}
		if k.Weight < 1 || k.GPUs < 1 {
			return 0, 0, fmt.Errorf("kind %d has weight %d and %d GPUs, both must be at least 1", i, k.Weight, k.GPUs)
		}
		total += k.Weight
		work += float64(k.Weight) * float64(k.Pods*k.GPUs) * float64(job.Demand.ShareMilli()) / model.WholeMilli
	}
	return total, work, nil
}

// Sample draws jobs from a list, with replacement, until they ask for the given
// percentage of a number of GPUs. It is how the openb lists become arrivals.
func Sample(list []model.Job, gpus int64, percent int, seed uint64) ([]model.Job, error) {
	var asks bool
	for i := range list {
		asks = asks || list[i].Demand.GPUs > 0
	}
	if !asks {
		return nil, errors.New("sampling jobs: no job of the list asks for a GPU")
	}
	rng := rand.New(rand.NewPCG(seed, 6))
	var out []model.Job
	for asked := int64(0); asked*100 < gpus*model.WholeMilli*int64(percent); {
		j := list[rng.IntN(len(list))]
		asked += int64(j.GPUs()) * j.Demand.ShareMilli()
		j.Name = fmt.Sprintf("%s/%d", j.Name, len(out))
		j.Arrival = 0
		out = append(out, j)
	}
	return out, nil
}
