// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	"github.com/topodra/topodra/api"
)

// Job is one pod with one claim.
type Job struct {
	// Name is unique in the stream; the pod and the claim bear it.
	Name string
	// GPUs is how many different GPUs of one node the job needs, at least 1.
	GPUs int
	// MemoryMiB is what it takes of each GPU; 0 takes all of it.
	MemoryMiB int64
	// CoresPercent is how much of each GPU's compute it reserves; 0 reserves none, or everything for a whole GPU.
	CoresPercent int64
	// Level and MinGBps are guaranteed if set: a set that does not reach them is refused.
	Level   api.Level
	MinGBps int32
}

// Whole tells whether the job takes whole GPUs.
func (j Job) Whole() bool { return j.MemoryMiB == 0 && j.CoresPercent == 0 }

// Guaranteed tells whether the job demands a guarantee.
func (j Job) Guaranteed() bool { return j.Level != api.LevelAny || j.MinGBps > 0 }

// Wants says in a few words what the job asks for.
func (j Job) Wants() string {
	parts := []string{fmt.Sprintf("%d GPUs", j.GPUs)}
	if j.GPUs == 1 {
		parts[0] = "1 GPU"
	}
	if !j.Whole() {
		parts[0] = fmt.Sprintf("%d × %d Gi %d %%", j.GPUs, j.MemoryMiB>>10, j.CoresPercent)
	}
	if j.Level != api.LevelAny {
		parts = append(parts, string(j.Level)+" only")
	}
	if j.MinGBps > 0 {
		parts = append(parts, fmt.Sprintf("≥ %d GB/s", j.MinGBps))
	}
	return strings.Join(parts, ", ")
}

// Step is one moment of the stream: some jobs end, then one job arrives.
type Step struct {
	Ends    []string
	Arrives Job
}

// NodeSpec is a simulated node.
type NodeSpec struct {
	Name string
	// Machine is the name of the recorded machine.
	Machine string
	// Links says in a few words what is particular about its links.
	Links string
}

// Nodes returns the simulated nodes: six kinds of machine that answer the same claim very differently.
func Nodes() []NodeSpec {
	return []NodeSpec{
		{Name: "cube-mesh", Machine: "dgx1v_8xv100", Links: "hybrid cube mesh: one or two NVLinks to four neighbours, none to the rest"},
		{Name: "interleave", Machine: "a100_8x_interleaved_pairs", Links: "NVLink pairs that are not neighbours: 0+2, 1+3, 4+5, 6+7"},
		{Name: "nvl-pairs", Machine: "h100nvl_8x_pairs", Links: "NVLink pairs, PCIe between them, two sockets"},
		{Name: "nvswitch", Machine: "hgxh100_8x_numa2", Links: "NVSwitch: every GPU to every GPU"},
		{Name: "pcie-only", Machine: "pcie_8x_pix_node_sys", Links: "no NVLink: PCIe switches of two GPUs, two sockets"},
		{Name: "degraded", Machine: "b200_8x_degraded_gpu2", Links: "NVSwitch with GPU 2 off the fabric"},
	}
}

// Stream returns the jobs in the order in which they arrive. The ends in between leave gaps of different shapes, so that
// the free GPUs are not what a fresh cluster would offer.
func Stream() []Step {
	gi := func(n int64) int64 { return n << 10 }
	arrivals := []struct {
		job  Job
		ends string
	}{
		{job: Job{GPUs: 4}},
		{job: Job{GPUs: 8}},
		{job: Job{GPUs: 2}},
		{job: Job{GPUs: 1}},
		{job: Job{GPUs: 1, MemoryMiB: gi(6), CoresPercent: 30}},
		{job: Job{GPUs: 2}},
		{job: Job{GPUs: 4}},
		{job: Job{GPUs: 2, MemoryMiB: gi(8), CoresPercent: 50}},
		{job: Job{GPUs: 1, MemoryMiB: gi(4), CoresPercent: 20}},
		{job: Job{GPUs: 2, Level: api.LevelNVLink}},
		{job: Job{GPUs: 8, Level: api.LevelNVLink}}, // the only machine that could is taken by job 2
		{ends: "3", job: Job{GPUs: 3}},
		{job: Job{GPUs: 2}},
		{ends: "2", job: Job{GPUs: 8, Level: api.LevelNVLink}}, // now it can
		{job: Job{GPUs: 1}},
		{ends: "6 10", job: Job{GPUs: 4}},
		{ends: "1", job: Job{GPUs: 2}},
		{job: Job{GPUs: 2, MinGBps: 300}},
		{ends: "8", job: Job{GPUs: 2}},
		{job: Job{GPUs: 1, MemoryMiB: gi(6), CoresPercent: 30}},
		{ends: "12 14", job: Job{GPUs: 4}},
		{job: Job{GPUs: 2, MemoryMiB: gi(8), CoresPercent: 50}},
		{ends: "13 21", job: Job{GPUs: 8}},
		{ends: "7", job: Job{GPUs: 4}},
	}
	steps := make([]Step, 0, len(arrivals))
	for i, a := range arrivals {
		a.job.Name = jobName(i + 1)
		step := Step{Arrives: a.job}
		for number := range strings.FieldsSeq(a.ends) {
			step.Ends = append(step.Ends, "job-"+strings.Repeat("0", 2-len(number))+number)
		}
		steps = append(steps, step)
	}
	return steps
}

func jobName(number int) string { return fmt.Sprintf("job-%02d", number) }
