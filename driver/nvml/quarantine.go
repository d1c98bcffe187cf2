// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuTimeout is how long all questions about one GPU may take. Each takes
// milliseconds; the slow part, waking the GPU up, is over when the library is open.
const gpuTimeout = 20 * time.Second

// quarantine keeps GPUs whose calls do not return from holding back the others. It
// is safe for concurrent use.
type quarantine struct {
	library library
	timeout time.Duration

	mu      sync.Mutex
	hanging map[int]*atomic.Pointer[string] // by NVML's index: what was called last
}

// newQuarantine returns a quarantine with nobody in it.
func newQuarantine(lib library) *quarantine {
	return &quarantine{library: lib, timeout: gpuTimeout, hanging: map[int]*atomic.Pointer[string]{}}
}

// read runs work about the GPU of the index and waits for it. When it takes too
// long, read gives up, and so do later calls about the same GPU, at once, until the
// work has ended. Work that hangs keeps the library open for itself.
func (q *quarantine) read(index int, work func(begin func(string)) (*foundGPU, error)) (*foundGPU, error) {
	doing := &atomic.Pointer[string]{}
	q.mu.Lock()
	if earlier := q.hanging[index]; earlier != nil {
		q.mu.Unlock()
		return nil, fmt.Errorf("GPU with NVML index %d: an earlier call still has not returned: %s", index, last(earlier))
	}
	q.hanging[index] = doing
	q.mu.Unlock()

	type result struct {
		gpu *foundGPU
		err error
	}
	done := make(chan result, 1)
	go func() {
		gpu, err := q.whileOpen(func() (*foundGPU, error) { return work(func(what string) { doing.Store(&what) }) })
		q.mu.Lock()
		delete(q.hanging, index)
		q.mu.Unlock()
		done <- result{gpu, err}
	}()
	timer := time.NewTimer(q.timeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.gpu, r.err
	case <-timer.C:
		return nil, fmt.Errorf("GPU with NVML index %d: no answer after %s from call %s", index, q.timeout, last(doing))
	}
}

// whileOpen makes sure that the library stays open until work has ended: NVML
// counts how often it was opened.
func (q *quarantine) whileOpen(work func() (*foundGPU, error)) (*foundGPU, error) {
	if ret := q.library.Init(); ret != nvml.SUCCESS {
		return nil, initError(ret)
	}
	gpu, err := work()
	if ret := q.library.Shutdown(); ret != nvml.SUCCESS && err == nil {
		return nil, fmt.Errorf("closing the library: %w", ret)
	}
	return gpu, err
}

// last returns what was called last.
func last(doing *atomic.Pointer[string]) string {
	if what := doing.Load(); what != nil {
		return *what
	}
	return "Init"
}
