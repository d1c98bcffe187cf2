// SPDX-License-Identifier: Apache-2.0

// Program topodra-gpu looks at the real GPUs of this machine as the driver does,
// and writes down what it saw. See test/gpu.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/nvml"
	"github.com/topodra/topodra/driver/nvml/memlimit"
	"github.com/topodra/topodra/driver/nvml/nvcdi"
	"github.com/topodra/topodra/test/gpu"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitNoGPU  = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// settings are the flags.
type settings struct {
	driverRoot, sysfsRoot, hook, out, name string
	timeout                                time.Duration
}

// run is main for tests, too.
func run(args []string, stdout, stderr io.Writer) int {
	s := settings{}
	flags := flag.NewFlagSet("topodra-gpu", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.driverRoot, "driver-root", "/", "root of the file system with NVIDIA's driver")
	flags.StringVar(&s.sysfsRoot, "sysfs-root", "/sys", "where sysfs is mounted")
	flags.StringVar(&s.hook, "nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook", "path of nvidia-cdi-hook; /bin/true where the toolkit is not installed")
	flags.StringVar(&s.out, "out", ".", "directory for the results")
	flags.StringVar(&s.name, "name", "recorded", "name of the recording")
	flags.DurationVar(&s.timeout, "timeout", 4*time.Minute, "most time that all of it may take")
	if err := flags.Parse(args); err != nil {
		return exitFailed
	}
	if !hasDriver(s.driverRoot) {
		_, _ = fmt.Fprintf(stdout, "skipped: this machine has no NVIDIA GPU, or its kernel driver is not loaded: neither /dev/nvidiactl nor /proc/driver/nvidia/version is below %q\n", s.driverRoot)
		return exitNoGPU
	}
	if err := look(&s, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "topodra-gpu:", err)
		return exitFailed
	}
	return exitOK
}

// hasDriver says whether the kernel driver is loaded.
func hasDriver(root string) bool {
	for _, path := range []string{"dev/nvidiactl", "proc/driver/nvidia/version"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return true
		}
	}
	return false
}

// look makes the checks and prints them.
func look(s *settings, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	root, err := filepath.Abs(s.driverRoot)
	if err != nil {
		return fmt.Errorf("resolving --driver-root: %w", err)
	}
	source, err := nvml.New(root, s.sysfsRoot)
	if err != nil {
		return err
	}
	base, err := nvcdi.New(nvcdi.Options{Library: nvml.Library(root), DriverRoot: root, HostDriverRoot: root, HookPath: s.hook})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o750); err != nil {
		return fmt.Errorf("making the directory for results: %w", err)
	}
	report, err := gpu.Run(ctx, gpu.Options{Source: source, Base: base, Paths: cdi.PathMap{}, Limits: memlimit.New(nvml.Library(root)).Supported, Out: s.out, Name: s.name})
	if err != nil {
		return err
	}
	for _, check := range report.Checks {
		result := "ok"
		if check.Error != "" {
			result = "FAILED: " + check.Error
		}
		_, _ = fmt.Fprintf(stdout, "%s (%.1f s): %s\n", check.Name, check.Seconds, result)
		for _, note := range check.Notes {
			_, _ = fmt.Fprintln(stdout, "  "+note)
		}
	}
	if failed := report.Failed(); len(failed) > 0 {
		return errors.New("some checks have failed")
	}
	return nil
}
