// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/nvml/internal/guard"
)

// gpuTimeout is how long all questions about one GPU may take. Each takes
// milliseconds; the slow part, waking the GPU up, is over when the library is open.
const gpuTimeout = 20 * time.Second

// quarantine keeps GPUs whose calls do not return from holding back the others. It
// is safe for concurrent use.
type quarantine struct {
	library library
	timeout time.Duration
	guard   *guard.Guard[int, *foundGPU] // by NVML's index
}

// newQuarantine returns a quarantine with nobody in it.
func newQuarantine(lib library) *quarantine {
	return &quarantine{library: lib, timeout: gpuTimeout, guard: guard.New[int, *foundGPU]()}
}

// read runs work about the GPU of the index and waits for it. When it takes too
// long, read gives up, and so do later calls about the same GPU, at once, until the
// work has ended. Work that hangs keeps the library open for itself.
func (q *quarantine) read(ctx context.Context, index int, work func(begin func(string)) (*foundGPU, error)) (*foundGPU, error) {
	gpu, err := q.guard.Do(ctx, index, q.timeout, func(begin func(string)) (*foundGPU, error) {
		begin("Init")
		return q.whileOpen(func() (*foundGPU, error) { return work(begin) })
	})
	if _, hangs := errors.AsType[*guard.HangError](err); hangs {
		return nil, fmt.Errorf("GPU with NVML index %d: %w", index, err)
	}
	return gpu, err
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
