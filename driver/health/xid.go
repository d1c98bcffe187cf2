// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strconv"
)

// DefaultIgnoredXIDs are errors that a faulty program causes: they end the
// program and leave the GPU as it was. They are those that NVIDIA's catalogue of
// XID errors (https://docs.nvidia.com/deploy/xid-errors) puts down to the
// application, and that NVIDIA's device plugin for Kubernetes ignores as well:
// 13 (exception of the graphics engine), 31 (page fault), 43 (channel stopped), 45
// (clean-up after an earlier error), 68 (exception of the video decoder) and 109
// (context switch timed out).
var DefaultIgnoredXIDs = []uint64{13, 31, 43, 45, 68, 109}

// xid is what is known of an error.
type xid struct {
	severity      Severity
	what, andThen string
}

// Things to do.
const (
	resetGPU   = "drain the GPU and reset it (nvidia-smi --gpu-reset), or reboot the node"
	rebootNode = "drain the node and reboot it; if it comes back, have the GPU looked at"
	restartJob = "restart the job that was hit; if it comes back, drain the GPU and reset it"
	lookAtIt   = "look into the kernel's log (dmesg) and NVIDIA's catalogue of XID errors"
	replaceGPU = "drain the GPU and have it replaced"
)

// xids are the errors of NVIDIA's catalogue that are about the GPU or its links, in
// our words. Others are Degraded.
var xids = map[uint64]xid{
	48:  {Fatal, "a memory error that could not be corrected", resetGPU},
	61:  {Fatal, "an error inside the GPU's firmware", resetGPU},
	62:  {Fatal, "the GPU's microcontroller has halted", resetGPU},
	63:  {Degraded, "a memory row is to be replaced by a spare one", resetGPU},
	64:  {Fatal, "a memory row could not be replaced by a spare one", resetGPU},
	69:  {Degraded, "an exception of the graphics engine's class", restartJob},
	74:  {Fatal, "an error of an NVLink", resetGPU},
	79:  {Fatal, "the GPU has fallen off the bus", rebootNode},
	92:  {Degraded, "many memory errors that could be corrected", lookAtIt},
	94:  {Degraded, "a memory error that was contained in one program", restartJob},
	95:  {Fatal, "a memory error that was not contained", resetGPU},
	119: {Fatal, "the GPU's system processor does not answer", resetGPU},
	120: {Fatal, "an error of the GPU's system processor", resetGPU},
	121: {Degraded, "an error of the link to the CPU", resetGPU},
	136: {Fatal, "the training of a link has failed", resetGPU},
	140: {Fatal, "a memory error that could not be corrected, found by ECC", resetGPU},
	143: {Fatal, "the GPU could not be initialised", resetGPU},
	145: {Degraded, "an NVLink reported an error of its receiver", restartJob},
	149: {Degraded, "an NVLink reported an error", restartJob},
	154: {Degraded, "the kernel driver wants something to be done with the GPU", lookAtIt},
}

// XIDFinding describes an error.
func XIDFinding(number uint64) Finding {
	known, ok := xids[number]
	if !ok {
		known = xid{Degraded, "an error of the GPU or its driver", lookAtIt}
	}
	return Finding{
		Kind: KindXID, Value: strconv.FormatUint(number, 10), Severity: known.severity, State: Unhealthy,
		Message: fmt.Sprintf("XID %d: %s", number, known.what), Advice: known.andThen,
	}
}
