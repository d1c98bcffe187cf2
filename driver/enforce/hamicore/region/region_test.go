// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLayout pins the offsets to those that HAMi-core 1.2 was compiled to.
func TestLayout(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ got, want int }{
		"magic": {Magic, 0x012FF74E}, "size": {Size, 2008952}, "GPUs": {MaxGPUs, 16}, "processes": {MaxProcesses, 1024},
		"initialized_flag": {offMagic, 0}, "major_version": {offMajor, 4}, "minor_version": {offMinor, 8}, "device_num": {offDeviceNum, 56},
		"limit": {offMemoryLimit, 64 + 16*96}, "sm_limit": {offCoresLimit, 1600 + 16*8}, "procs": {offSlots, 1728 + 16*8},
		"proc_num": {offSlotsUsed, 1856 + 1024*1960}, "last_kernel_time": {offLastKernel, 2008896 + 4*4},
		"slot": {slotSize, 1960}, "pid": {slotPID, 0}, "hostpid": {slotHostPID, 4}, "used": {slotUsed, 8}, "status": {slotStatus, 1928}, "seqlock": {slotSequence, 1936},
		"one used": {usedSize, 64}, "context_size": {usedContext, 0}, "module_size": {usedModule, 8}, "data_size": {usedBuffer, 16}, "offset": {usedOffset, 24}, "total": {usedTotal, 32},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %d, want %d", name, test.got, test.want)
		}
	}
}

// builder writes regions byte by byte.
type builder []byte

// newBuilder returns a region of the number of GPUs without processes.
func newBuilder(gpus uint64) builder {
	b := make(builder, Size+1)
	b.put32(offMagic, Magic)
	b.put32(offMajor, Major)
	b.put32(offMinor, Minor)
	b.put64(offDeviceNum, gpus)
	return b
}

func (b builder) put32(at int, value uint32) builder {
	binary.LittleEndian.PutUint32(b[at:], value)
	return b
}

func (b builder) put64(at int, value uint64) builder {
	binary.LittleEndian.PutUint64(b[at:], value)
	return b
}

// process adds a process in the next slot, and returns where it begins.
func (b builder) process(pid, status uint32) int {
	used := binary.LittleEndian.Uint32(b[offSlotsUsed:])
	at := offSlots + int(used)*slotSize
	b.put32(at+slotPID, pid).put32(at+slotHostPID, 1000+pid).put32(at+slotStatus, status).put32(offSlotsUsed, used+1)
	return at
}

// use sets what the process in the slot uses of a GPU.
func (b builder) use(slot, gpu int, context, module, buffer, total uint64) builder {
	at := slot + slotUsed + gpu*usedSize
	return b.put64(at+usedContext, context).put64(at+usedModule, module).put64(at+usedBuffer, buffer).put64(at+usedTotal, total)
}

// parse reads the region.
func (b builder) parse() (*Region, error) { return Parse(bytes.NewReader(b), int64(len(b))) }

func TestParse(t *testing.T) {
	t.Parallel()
	b := newBuilder(2)
	b.put64(offMemoryLimit, 1<<30).put64(offCoresLimit, 50).put64(offMemoryLimit+8, 2<<30).put64(offCoresLimit+8, 100).put64(offLastKernel, 1700000000)
	first := b.process(7, statusRunning)
	b.use(first, 0, 1, 2, 3, 10).use(first, 1, 4, 0, 0, 5)
	b.use(b.process(8, statusEmpty), 0, 9, 9, 9, 9)
	b.use(b.process(9, statusSwapped), 0, 100, 0, 0, 1000)
	got, err := b.parse()
	if err != nil {
		t.Fatal(err)
	}
	want := &Region{
		GPUs: 2, MemoryLimitBytes: []uint64{1 << 30, 2 << 30}, CoresLimitPercent: []uint64{50, 100}, LastKernel: time.Unix(1700000000, 0),
		Processes: []Process{
			{PID: 7, HostPID: 1007, Memory: []Memory{{1, 2, 3, 10}, {4, 0, 0, 5}}},
			{PID: 9, HostPID: 1009, Memory: []Memory{{100, 0, 0, 1000}, {}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Memory{{101, 2, 3, 1010}, {4, 0, 0, 5}}, got.Memory()); diff != "" {
		t.Error(diff)
	}
	full := newBuilder(MaxGPUs)
	for range MaxProcesses {
		full.use(full.process(1, statusRunning), MaxGPUs-1, 0, 0, 0, maxBytes)
	}
	if got, err = full.parse(); err != nil || len(got.Processes) != MaxProcesses || got.Memory()[MaxGPUs-1].Total != maxBytes*MaxProcesses {
		t.Errorf("full: got %v", err)
	}
	if got, err = Parse(bytes.NewReader(make([]byte, Size+1)), Size+1); err != nil || cmp.Diff(&Region{}, got) != "" {
		t.Errorf("empty: got %+v, %v", got, err)
	}
}

// TestParseRejects: every number that is out of range has its own reason.
func TestParseRejects(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content builder
		want    Reason
	}{
		"nothing":            {builder{}, ReasonSize},
		"a byte short":       {newBuilder(1)[:Size-1], ReasonSize},
		"two bytes long":     {append(newBuilder(1), 0), ReasonSize},
		"magic":              {newBuilder(1).put32(offMagic, Magic+1), ReasonMagic},
		"other endianness":   {newBuilder(1).put32(offMagic, 0x4EF72F01), ReasonMagic},
		"major version":      {newBuilder(1).put32(offMajor, 2), ReasonVersion},
		"minor version":      {newBuilder(1).put32(offMinor, 1), ReasonVersion},
		"17 GPUs":            {newBuilder(MaxGPUs + 1), ReasonCounts},
		"most GPUs":          {newBuilder(1<<64 - 1), ReasonCounts},
		"1025 processes":     {newBuilder(1).put32(offSlotsUsed, MaxProcesses+1), ReasonCounts},
		"negative processes": {newBuilder(1).put32(offSlotsUsed, 1<<32-1), ReasonCounts},
		"status":             {newBuilder(1).put32(offSlotsUsed, 1).put32(offSlots+slotStatus, 3), ReasonValues},
		"too many bytes":     {newBuilder(1).put32(offSlotsUsed, 1).put32(offSlots+slotStatus, 1).put64(offSlots+slotUsed+usedTotal, maxBytes+1), ReasonValues},
		"underflow":          {newBuilder(1).put32(offSlotsUsed, 1).put32(offSlots+slotStatus, 2).put64(offSlots+slotUsed+usedBuffer, 1<<64-1), ReasonValues},
		"end of time":        {newBuilder(1).put64(offLastKernel, 1<<63), ReasonValues},
	} {
		got, err := test.content.parse()
		if err == nil || ReasonOf(err) != test.want {
			t.Errorf("%s: got %+v, %v; want reason %q", name, got, err, test.want)
		}
	}
	if reason := ReasonOf(io.ErrClosedPipe); reason != ReasonRead {
		t.Errorf("any error: got reason %q", reason)
	}
}

// changing is a file that changes, or ends, while it is read.
type changing struct {
	content builder
	read    func(at int64)
}

func (c *changing) ReadAt(buffer []byte, at int64) (int, error) {
	n, err := bytes.NewReader(c.content).ReadAt(buffer, at)
	c.read(at)
	return n, err
}

// TestTorn: a slot whose process keeps writing is left out, one whose process has
// finished meanwhile is read, and the others are read anyway.
func TestTorn(t *testing.T) {
	t.Parallel()
	b := newBuilder(1)
	slots := []int{b.process(1, statusRunning), b.process(2, statusRunning), b.process(3, statusRunning), b.process(4, statusRunning)}
	b.put64(slots[0]+slotSequence, 7) // killed while it wrote
	b.put64(slots[2]+slotSequence, 3)
	reads := 0
	file := &changing{content: b, read: func(at int64) {
		switch at {
		case int64(slots[1]):
			b.put64(slots[1]+slotSequence, binary.LittleEndian.Uint64(b[slots[1]+slotSequence:])+2) // always between our two looks
		case int64(slots[2]):
			if reads++; reads == 2 {
				b.put64(slots[2]+slotSequence, 4)
			}
		}
	}}
	got, err := Parse(file, Size+1)
	if err != nil {
		t.Fatal(err)
	}
	if got.Torn != 2 || len(got.Processes) != 2 || got.Processes[0].PID != 3 || got.Processes[1].PID != 4 {
		t.Errorf("got %+v", got)
	}
	ends := &changing{content: b}
	ends.read = func(at int64) {
		if at == int64(slots[2]) {
			ends.content = ends.content[:slots[2]+slotSize]
		}
	}
	if _, err := Parse(ends, Size+1); ReasonOf(err) != ReasonSize {
		t.Errorf("cut off: got %v", err)
	}
}

// write puts content into a file of its own.
func write(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vgpu.cache")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadKinds: only regular files are opened, whatever a container puts in their
// place, and nothing waits.
func TestReadKinds(t *testing.T) {
	t.Parallel()
	good := write(t, newBuilder(3))
	if got, err := Read(good); err != nil || got.GPUs != 3 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := Read(good + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: got %v", err)
	}
	dir := t.TempDir()
	path := func(name string, make func(path string) error) string {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatalf("making %s: %v", name, err)
		}
		return path
	}
	sparse := func(size int64) func(path string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, newBuilder(1)[:8], 0o600), os.Truncate(path, size))
		}
	}
	for name, test := range map[string]struct {
		path string
		want Reason
	}{
		"link":         {path("link", func(p string) error { return os.Symlink(good, p) }), ReasonKind},
		"dead link":    {path("dead", func(p string) error { return os.Symlink("/nowhere", p) }), ReasonKind},
		"pipe":         {path("pipe", func(p string) error { return syscall.Mkfifo(p, 0o600) }), ReasonKind},
		"directory":    {dir, ReasonKind},
		"socket":       {path("socket", makeSocket), ReasonKind},
		"device":       {"/dev/zero", ReasonKind},
		"huge":         {path("huge", sparse(1<<40)), ReasonSize},
		"below a file": {filepath.Join(good, "x"), ReasonRead},
		"short":        {path("short", sparse(100)), ReasonSize},
	} {
		done := make(chan error, 1)
		go func() { _, err := Read(test.path); done <- err }()
		select {
		case err := <-done:
			if err == nil || ReasonOf(err) != test.want {
				t.Errorf("%s: got %v, want reason %q", name, err, test.want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: reading hangs", name)
		}
	}
	// Holes are zeros: no version.
	if _, err := Read(path("sparse", func(p string) error {
		return errors.Join(os.WriteFile(p, newBuilder(1)[:4], 0o600), os.Truncate(p, Size+1))
	})); ReasonOf(err) != ReasonVersion {
		t.Errorf("sparse: got %v", err)
	}
}

// makeSocket makes the file of a socket.
func makeSocket(path string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Close(fd))
}

// TestReadLease: a lease would hold the reader up for 45 s.
func TestReadLease(t *testing.T) {
	t.Parallel()
	path := write(t, newBuilder(1))
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	lease := func(kind int) syscall.Errno {
		_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), 1024 /* F_SETLEASE */, uintptr(kind))
		return errno
	}
	if errno := lease(syscall.F_WRLCK); errno != 0 {
		t.Fatalf("taking a lease: %v", errno)
	}
	start := time.Now()
	if _, err := Read(path); ReasonOf(err) != ReasonBusy {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("waited %s", took)
	}
	if errno := lease(syscall.F_UNLCK); errno != 0 {
		t.Fatalf("giving the lease back: %v", errno)
	}
	if _, err := Read(path); err != nil {
		t.Errorf("without lease: got %v", err)
	}
}

// TestReadWhileItChanges: a file that is cut off, filled and exchanged all the time
// neither ends the process nor yields numbers that nobody wrote.
func TestReadWhileItChanges(t *testing.T) {
	t.Parallel()
	b := newBuilder(1)
	for range 50 {
		b.use(b.process(1, statusRunning), 0, 1, 1, 1, 3)
	}
	path := write(t, b)
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; !stop.Load(); i++ {
			switch i % 4 {
			case 0:
				_ = os.Truncate(path, int64(i%Size))
			case 1:
				_ = os.Truncate(path, Size+1)
			case 2:
				_ = os.WriteFile(path, b, 0o600)
			default:
				_ = os.Remove(path)
				_ = os.Symlink("/dev/zero", path)
				_ = os.Remove(path)
				_ = os.WriteFile(path, b, 0o600)
			}
		}
	})
	seen := map[bool]int{}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		got, err := Read(path)
		seen[err == nil]++
		if err != nil {
			continue
		}
		for _, process := range got.Processes {
			if memory := process.Memory[0]; memory != (Memory{1, 1, 1, 3}) && memory.Total > 3 {
				t.Errorf("got %+v", memory)
			}
		}
	}
	stop.Store(true)
	writer.Wait()
	if seen[false] == 0 {
		t.Errorf("read %d times, never while it changed", seen[true])
	}
}

// parts is a file with content at a few places and holes between them.
type parts map[int64][]byte

func (p parts) ReadAt(buffer []byte, at int64) (int, error) {
	clear(buffer)
	for start, content := range p {
		if at >= start && at < start+int64(len(content)) {
			copy(buffer, content[at-start:])
		}
	}
	return len(buffer), nil
}

// FuzzParse: nothing panics, and what comes out is within bounds.
func FuzzParse(f *testing.F) {
	b := newBuilder(2)
	b.use(b.process(1, statusRunning), 1, 1, 2, 3, 4)
	f.Add([]byte(b[:headerSize]), []byte(b[offSlots:offSlots+2*slotSize]), []byte(b[offSlotsUsed:Size]), int64(Size+1))
	f.Add([]byte{}, []byte{}, []byte{}, int64(Size))
	f.Add([]byte{0x4e, 0xf7, 0x2f, 1, 1, 0, 0, 0, 2}, []byte{}, []byte{255, 255}, int64(-1))
	f.Fuzz(func(t *testing.T, header, slots, trailer []byte, size int64) {
		got, err := Parse(parts{0: header, offSlots: slots, offSlotsUsed: trailer}, size)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("an error without reason: %v", err)
			}
			return
		}
		if got.GPUs > MaxGPUs || len(got.Processes)+got.Torn > MaxProcesses || len(got.MemoryLimitBytes) != got.GPUs {
			t.Errorf("got %d GPUs, %d processes", got.GPUs, len(got.Processes))
		}
		for _, sum := range got.Memory() {
			if sum.Total > maxBytes*MaxProcesses {
				t.Errorf("got %d bytes", sum.Total)
			}
		}
	})
}
