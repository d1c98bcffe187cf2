// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// probeEnv makes a program that calls RunProbeChild the child of a probe.
const probeEnv = "TOPODRA_PRELOAD_PROBE"

// probeTimeout is ample for a program that only starts.
const probeTimeout = 10 * time.Second

// Probe starts program with the library preloaded and looks whether the dynamic
// linker has mapped it. program must call RunProbeChild first thing and be
// dynamically linked; a driver passes its own executable. This is the linker of
// the driver's own image, so it finds a library that is built for another libc,
// lacks symbols or is damaged; the container's linker may still be another one.
func Probe(program string) func(ctx context.Context, library string) error {
	return func(ctx context.Context, library string) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		child := exec.CommandContext(ctx, program)
		child.Env = []string{probeEnv + "=" + library, "LD_PRELOAD=" + library}
		child.WaitDelay = time.Second
		var stdout, stderr bytes.Buffer
		child.Stdout, child.Stderr = &stdout, &stderr
		if err := child.Run(); err != nil {
			return fmt.Errorf("starting %q with %q preloaded: %w%s", program, library, err, said(&stderr))
		}
		if strings.TrimSpace(stdout.String()) != library {
			return fmt.Errorf("the dynamic linker does not load %q into %q%s", library, program, said(&stderr))
		}
		return nil
	}
}

// said quotes the first line that the child wrote about its failure.
func said(stderr *bytes.Buffer) string {
	line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
	if line == "" {
		return ""
	}
	return fmt.Sprintf(" (it said %q)", line)
}

// RunProbeChild answers a probe and tells whether this process was started for
// one; the caller then exits with the code. It writes the library's path to
// stdout if the library is mapped.
func RunProbeChild(stdout io.Writer) (code int, isChild bool) {
	library := os.Getenv(probeEnv)
	if library == "" {
		return 0, false
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 1, true
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+library) {
			if _, err := io.WriteString(stdout, library+"\n"); err != nil {
				return 1, true
			}
			return 0, true
		}
	}
	return 0, true
}
