// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"

	"github.com/topodra/topodra/topology"
)

// ReferenceRatio is the ratio of bandwidths at which the slow-downs of the profiles
// were measured: two P100 of a Power8 server ("Minsky") joined by two NVLinks of
// 20 GB/s, against two of different sockets, for which this project counts a SYS
// hop at PCIe Gen3, 6 GB/s.
const ReferenceRatio = 40.0 / 6.0

// Profiles are measured slow-downs in per mille, two GPUs across sockets against two
// joined by NVLink: Amaral et al., "Topology-aware GPU scheduling for learning
// workloads in cloud environments" (SC'17), from the profile in the repository
// HiEST/gpu-topo-aware. Values below 0 count as 0.
var (
	// SensitiveProfiles are AlexNet with batches of 1 and 4 images per GPU.
	SensitiveProfiles = []int64{249, 230}
	// InsensitiveProfiles are AlexNet with 64 and 128, GoogLeNet with 1, 4, 64 and
	// 128 images per GPU.
	InsensitiveProfiles = []int64{19, 9, 28, 21, 0, 9}
)

// RunTime returns how long a job runs whose slowest pod has links of the bandwidth
// got where best was possible:
//
//	duration · (1 + slow · (best/got − 1) / (ReferenceRatio − 1))
//
// That is: communication takes a fixed share of the time at the best bandwidth and
// grows in inverse proportion to the bandwidth, computation does not change; the
// share is the one that explains the measured slow-down. Pods without links run as
// fast as they can.
func RunTime(duration Millis, slowPermille int64, best, got topology.MBps) Millis {
	if got == 0 || got >= best || slowPermille == 0 {
		return duration
	}
	excess := float64(best)/float64(got) - 1
	slow := float64(slowPermille) / 1000 / (ReferenceRatio - 1)
	extra := math.Round(float64(duration) * float64(slow*excess))
	return duration + Millis(extra)
}
