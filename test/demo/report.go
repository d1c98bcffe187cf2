// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

// Report is the result of a demo, as written to the JSON file.
type Report struct {
	// Note says what the figures are and what they are not.
	Note string `json:"note"`
	// TierPercent is the tolerance within which two bandwidths count as the same tier.
	TierPercent int `json:"tierPercent"`
	// Nodes are the simulated nodes in the order of the table.
	Nodes []NodeInfo `json:"nodes"`
	// Runs holds one entry per scheduler, in the order in which they ran.
	Runs []RunResult `json:"runs"`
	// Seconds is how long the whole demo took, start and stop of the control plane included.
	Seconds float64 `json:"seconds"`
}

// NodeInfo describes one simulated node.
type NodeInfo struct {
	Name string `json:"name"`
	// Machine is the name of the recorded machine.
	Machine string `json:"machine"`
	// Links says in a few words how its GPUs are linked.
	Links string `json:"links"`
	GPUs  int    `json:"gpus"`
}

// RunResult is the stream under one scheduler.
type RunResult struct {
	Scheduler string    `json:"scheduler"`
	Jobs      []Outcome `json:"jobs"`
	Totals    Totals    `json:"totals"`
}

// Outcome is one job under one scheduler.
type Outcome struct {
	Job string `json:"job"`
	// Wants describes the job's request in words.
	Wants string `json:"wants"`
	// GPUsWanted is how many GPUs the job asks for.
	GPUsWanted int `json:"gpusWanted"`
	// Placed is nil when the job stayed pending.
	Placed *Placement `json:"placed,omitempty"`
	// Optimum is the best set on any node at the moment the job was submitted, its guarantee included; nil when there was none.
	Optimum *Placement `json:"optimum,omitempty"`
	// Tier is 0 when the job got the best tier that existed at its moment, 1 for the next, and so on; −1 when it stayed pending.
	Tier int `json:"tier"`
	// Guaranteed tells that the job demands a guarantee.
	Guaranteed bool `json:"guaranteed,omitempty"`
	// Violated tells that the job was placed although its guarantee does not hold.
	Violated bool `json:"violated,omitempty"`
	// Message is the scheduler's event about a pending job.
	Message string `json:"message,omitempty"`
	// BestNow and BestWhenFree are, for a pending job, the best sets now and if no other job were there, whatever the job
	// guarantees; nil when there is none.
	BestNow      *Placement `json:"bestNow,omitempty"`
	BestWhenFree *Placement `json:"bestWhenFree,omitempty"`
	// Finished are the jobs that ended just before this one was submitted.
	Finished []string `json:"finished,omitempty"`
	// Milliseconds from the creation of the pod to its binding, or to the verdict that it has to wait.
	Milliseconds int64 `json:"milliseconds"`
}

// Placement is a set of GPUs on one node and what it is worth.
type Placement struct {
	Node  string  `json:"node"`
	GPUs  []int   `json:"gpus"`
	Rings int     `json:"rings"`
	GBps  float64 `json:"gbps"`
	// Link is the weakest hop of the best ring, as in nvidia-smi topo -m.
	Link string `json:"link"`
}

// Totals sums up one run.
type Totals struct {
	// Communicating counts the jobs with two GPUs or more for which there was an optimum: some set could be had that keeps
	// the job's guarantee, if it has one.
	Communicating int `json:"communicating"`
	// AtOptimum is how many of them got the best tier of their moment.
	AtOptimum int `json:"atOptimum"`
	// MeanOfOptimum is the mean of achieved ÷ optimum bandwidth over them, 0 to 1.
	MeanOfOptimum float64 `json:"meanOfOptimum"`
	// MeanGBps is the mean bandwidth over them, in 10^9 bytes per second; a job that waits counts with 0.
	MeanGBps float64 `json:"meanGBps"`
	// GuaranteesBroken counts the jobs that were placed although their guarantee does not hold.
	GuaranteesBroken int `json:"guaranteesBroken"`
}

// Achieved returns the achieved share of the optimum: 0 for a job that waits although it could run. It returns false where the
// question has no answer: one GPU has no links, and where there is no optimum there is nothing to compare with.
func (o Outcome) Achieved() (float64, bool) {
	if o.GPUsWanted < 2 || o.Optimum == nil || o.Optimum.GBps <= 0 {
		return 0, false
	}
	if o.Placed == nil {
		return 0, true
	}
	return o.Placed.GBps / o.Optimum.GBps, true
}

// Total sums up the outcomes of one run.
func Total(jobs []Outcome) Totals {
	var t Totals
	sum, gbps := 0.0, 0.0
	for _, o := range jobs {
		if o.Violated {
			t.GuaranteesBroken++
		}
		share, ok := o.Achieved()
		if !ok {
			continue
		}
		t.Communicating++
		sum += share
		if o.Placed != nil {
			gbps += o.Placed.GBps
		}
		if o.Tier == 0 {
			t.AtOptimum++
		}
	}
	if t.Communicating > 0 {
		t.MeanOfOptimum = sum / float64(t.Communicating)
		t.MeanGBps = gbps / float64(t.Communicating)
	}
	return t
}

// seconds rounds a duration for the report.
func seconds(d time.Duration) float64 { return d.Round(100 * time.Millisecond).Seconds() }
