// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Region is what a container says about itself.
type Region struct {
	// GPUs that the container counts, at most MaxGPUs. 0 while no process has
	// filled the file in; everything else is then empty, too.
	GPUs int

	// MemoryLimitBytes and CoresLimitPercent that the processes go by, by number
	// of the GPU; 0 is no limit. Where they differ from what the container was
	// given, somebody has changed them.
	MemoryLimitBytes, CoresLimitPercent []uint64

	// Processes in the order of their slots.
	Processes []Process

	// Torn counts slots that were left out because they kept changing.
	Torn int

	// LastKernel is when a kernel was last started; zero for never.
	LastKernel time.Time
}

// Process is what one process uses.
type Process struct {
	// PID as the container counts, and HostPID as the host does; 0 is unknown.
	PID, HostPID int32

	// Memory by number of the GPU, Region.GPUs long.
	Memory []Memory
}

// Memory of one GPU, in bytes.
type Memory struct {
	// Context, Module and Buffer are parts of Total: CUDA's own, code, and what
	// the program asked for.
	Context, Module, Buffer, Total uint64
}

// Memory sums up over all processes, by number of the GPU.
func (r *Region) Memory() []Memory {
	out := make([]Memory, r.GPUs)
	for i := range r.Processes {
		for gpu, used := range r.Processes[i].Memory {
			sum := &out[gpu]
			sum.Context += used.Context
			sum.Module += used.Module
			sum.Buffer += used.Buffer
			sum.Total += used.Total
		}
	}
	return out
}

// Parse reads a region from a file of the size. What is wrong with its content is
// an *Error.
func Parse(file io.ReaderAt, size int64) (*Region, error) {
	if size < Size || size > Size+1 {
		return nil, &Error{Reason: ReasonSize, Err: fmt.Errorf("it has %d bytes, not %d", size, Size+1)}
	}
	header, err := readAt(file, make([]byte, headerSize), 0)
	if err != nil {
		return nil, err
	}
	if err := checkIdentity(header); err != nil {
		return nil, err
	}
	if number32(header, offMagic) == 0 {
		return &Region{}, nil
	}
	trailer, err := readAt(file, make([]byte, trailerSize), offSlotsUsed)
	if err != nil {
		return nil, err
	}
	gpus, slots := number64(header, offDeviceNum), number32(trailer, 0)
	if gpus > MaxGPUs || slots > MaxProcesses {
		return nil, &Error{Reason: ReasonCounts, Err: fmt.Errorf("it counts %d GPUs and %d processes", gpus, int32(slots))}
	}
	region := &Region{GPUs: int(gpus), MemoryLimitBytes: make([]uint64, gpus), CoresLimitPercent: make([]uint64, gpus)}
	for i := range region.GPUs {
		region.MemoryLimitBytes[i] = number64(header, offMemoryLimit+8*i)
		region.CoresLimitPercent[i] = number64(header, offCoresLimit+8*i)
	}
	if seconds := number64(trailer, offLastKernel-offSlotsUsed); seconds > 0 {
		if seconds > maxUnixSeconds {
			return nil, &Error{Reason: ReasonValues, Err: fmt.Errorf("its last kernel was at second %d", seconds)}
		}
		region.LastKernel = time.Unix(int64(seconds), 0)
	}
	return region, region.readSlots(file, int(slots))
}

// maxUnixSeconds is in the year 9999.
const maxUnixSeconds = 253402300799

// checkIdentity tells our layout, or a file that is still empty, from others.
func checkIdentity(header []byte) error {
	magic, major, minor := number32(header, offMagic), number32(header, offMajor), number32(header, offMinor)
	switch {
	case magic == 0:
		// The driver makes it like that. Whoever fills it in writes this last or
		// first; either way there is nothing yet.
		return nil
	case magic != Magic:
		return &Error{Reason: ReasonMagic, Err: fmt.Errorf("it begins with %#x, not %#x", magic, Magic)}
	case major != Major || minor != Minor:
		return &Error{Reason: ReasonVersion, Err: fmt.Errorf("its version is %d.%d, not %d.%d", major, minor, Major, Minor)}
	default:
		return nil
	}
}

// readSlots reads the first slots.
func (r *Region) readSlots(file io.ReaderAt, slots int) error {
	buffer := make([]byte, slotSize)
	for i := range slots {
		stable, err := readSlot(file, buffer, int64(offSlots+i*slotSize))
		if err != nil {
			return err
		}
		if !stable {
			r.Torn++
			continue
		}
		status := number32(buffer, slotStatus)
		if status == statusEmpty {
			continue
		}
		if status != statusRunning && status != statusSwapped {
			return &Error{Reason: ReasonValues, Err: fmt.Errorf("process %d has status %d", i, int32(status))}
		}
		process := Process{PID: int32(number32(buffer, slotPID)), HostPID: int32(number32(buffer, slotHostPID)), Memory: make([]Memory, r.GPUs)}
		for gpu := range process.Memory {
			if process.Memory[gpu], err = memoryOf(buffer[slotUsed+gpu*usedSize:]); err != nil {
				return fmt.Errorf("process %d, GPU %d: %w", i, gpu, err)
			}
		}
		r.Processes = append(r.Processes, process)
	}
	return nil
}

// readSlot reads one slot. It is not stable if its process wrote there each time.
func readSlot(file io.ReaderAt, buffer []byte, at int64) (stable bool, err error) {
	var after [8]byte
	for range maxAttempts {
		if _, err := readAt(file, buffer, at); err != nil {
			return false, err
		}
		before := number64(buffer, slotSequence)
		if before%2 != 0 {
			continue
		}
		if _, err := readAt(file, after[:], at+slotSequence); err != nil {
			return false, err
		}
		if number64(after[:], 0) == before {
			return true, nil
		}
	}
	return false, nil
}

// memoryOf reads a record of used memory.
func memoryOf(record []byte) (Memory, error) {
	memory := Memory{
		Context: number64(record, usedContext), Module: number64(record, usedModule),
		Buffer: number64(record, usedBuffer), Total: number64(record, usedTotal),
	}
	for _, bytes := range []uint64{memory.Context, memory.Module, memory.Buffer, memory.Total} {
		if bytes > maxBytes {
			return Memory{}, &Error{Reason: ReasonValues, Err: fmt.Errorf("it uses %d bytes", bytes)}
		}
	}
	return memory, nil
}

// readAt fills the buffer. A file that ends before has been cut off.
func readAt(file io.ReaderAt, buffer []byte, at int64) ([]byte, error) {
	n, err := file.ReadAt(buffer, at)
	switch {
	case n == len(buffer):
		return buffer, nil
	case err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &Error{Reason: ReasonSize, Err: fmt.Errorf("it ended at byte %d while it was read", at+int64(n))}
	default:
		return nil, &Error{Reason: ReasonRead, Err: err}
	}
}

// number32 and number64 read a number.
func number32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func number64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
