// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// caller makes calls of one discovery.
type caller struct {
	library library
	begin   func(what string) // tells the watchdog
	known   map[string]bool   // symbol → whether the library has it
}

// has reports whether the loaded library has a C function.
func (c *caller) has(symbol string) bool {
	found, ok := c.known[symbol]
	if !ok {
		found = c.library.Extensions().LookupSymbol(symbol) == nil
		c.known[symbol] = found
	}
	return found
}

// call makes a call that every supported driver has.
func call[T any](c *caller, what string, f func() (T, nvml.Return)) (T, error) {
	c.begin(what)
	value, ret := f()
	if ret != nvml.SUCCESS {
		var none T
		return none, fmt.Errorf("%s: %w", what, ret)
	}
	return value, nil
}

// gpuReader makes calls about one GPU and keeps what goes wrong.
type gpuReader struct {
	*caller
	name     string // for people
	warnings []string
	lost     error // set once the GPU is gone; nothing more is asked then
}

// optional asks for a fact that may be missing. symbol is the C function, to be
// looked up before the call, or "" if every supported driver has it. ok is false
// when there is no answer, for whatever reason; failures leave a warning.
func optional[T any](r *gpuReader, symbol, what string, f func() (T, nvml.Return)) (value T, ok bool) {
	if r.lost != nil || symbol != "" && !r.has(symbol) {
		return value, false
	}
	answer, err := call(r.caller, what+" of "+r.name, f)
	switch {
	case err == nil:
		return answer, true
	case notSupported(err):
	case isLost(err):
		r.lost = err
	default:
		r.warn("leaving out what could not be read: %v", err)
	}
	return value, false
}

// warn keeps a warning about the GPU.
func (r *gpuReader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, r.name+": "+fmt.Sprintf(format, args...))
}

// notSupported reports that a GPU or driver does not have a feature.
func notSupported(err error) bool {
	return errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND)
}

// isLost reports that the GPU does not answer any more.
func isLost(err error) bool {
	return errors.Is(err, nvml.ERROR_GPU_IS_LOST) || errors.Is(err, nvml.ERROR_GPU_NOT_FOUND)
}
