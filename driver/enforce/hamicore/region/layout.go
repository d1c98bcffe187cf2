// SPDX-License-Identifier: Apache-2.0

package region

// Layout 1.2 as HAMi-core has it on 64-bit machines, little endian. Everything
// here is measured from the start of the file unless it says otherwise, in bytes.
const (
	// Size of the structure. The library makes the file one byte longer.
	Size = 2008952

	// Magic is the first number of a file that a process has filled in.
	Magic = 19920718

	// Major and Minor are the version that is read.
	Major, Minor = 1, 2

	// MaxGPUs and MaxProcesses are the lengths of the tables.
	MaxGPUs      = 16
	MaxProcesses = 1024

	offMagic       = 0
	offMajor       = 4
	offMinor       = 8
	offDeviceNum   = 56
	offMemoryLimit = 1600 // MaxGPUs numbers of 8 bytes, in bytes; 0 is none
	offCoresLimit  = 1728 // MaxGPUs numbers of 8 bytes, in percent
	offSlots       = 1856
	offSlotsUsed   = 2008896
	offLastKernel  = 2008912 // seconds since 1970; 0 is never

	// headerSize and trailerSize are what is before and behind the slots.
	headerSize  = offSlots
	trailerSize = Size - offSlotsUsed

	// A slot belongs to one process. The following are measured from its start.
	slotSize      = 1960
	slotPID       = 0
	slotHostPID   = 4
	slotUsed      = 8 // MaxGPUs records of usedSize
	slotStatus    = 1928
	slotSequence  = 1936 // odd while the process writes
	usedSize      = 64
	usedContext   = 0
	usedModule    = 8
	usedBuffer    = 16
	usedOffset    = 24
	usedTotal     = 32
	statusEmpty   = 0
	statusRunning = 1
	statusSwapped = 2
)

// maxBytes is more memory than any GPU has: 256 TiB. It also keeps sums over all
// processes within 64 bits.
const maxBytes = 1 << 48

// maxAttempts is how often a slot is read while its process writes there.
const maxAttempts = 4
