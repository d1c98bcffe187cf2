// SPDX-License-Identifier: Apache-2.0

package vgpudouble

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build compiles both parts.
func build(t *testing.T) (library, program string) {
	t.Helper()
	dir := t.TempDir()
	library, err := Library(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "gpuview")
	if err := compile(t.Context(), viewSource, program); err != nil {
		t.Fatal(err)
	}
	return library, program
}

// run runs gpuview and returns its report.
func run(t *testing.T, program string, env ...string) Report {
	t.Helper()
	command := exec.Command(program)
	command.Env = env
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	report, err := ParseReport(string(output))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestDouble preloads the double outside of containers.
func TestDouble(t *testing.T) {
	library, program := build(t)
	region := filepath.Join(t.TempDir(), "region")
	env := []string{
		"LD_PRELOAD=" + library, "CUDA_DEVICE_MEMORY_SHARED_CACHE=" + region, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0,1",
		"CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_MEMORY_LIMIT_1=3g", "CUDA_DEVICE_SM_LIMIT_0=50", "CUDA_DEVICE_SM_LIMIT_1=100",
	}
	got := run(t, program, env...)
	want := Report{
		Preloaded: true, PID: got.PID, Order: "PCI_BUS_ID", Visible: "0,1", Region: region, RegionWritable: true,
		Memory: map[string]string{"0": "4096m", "1": "3g"}, Cores: map[string]string{"0": "50", "1": "100"},
	}
	if diff := cmp.Diff(want, got); diff != "" || got.PID <= 0 {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if memory, err := got.MemoryMiB(); err != nil || !slices.Equal(memory, []int64{4096, 3072}) {
		t.Errorf("memory: got %v, %v, want 4096 and 3072 MiB", memory, err)
	}
	run(t, program, env...) // a second process of the same container
	data, err := os.ReadFile(region)
	if err != nil {
		t.Fatal(err)
	}
	number := func(offset int) uint32 { return binary.LittleEndian.Uint32(data[offset:]) }
	layout := map[string]uint32{
		"length": uint32(len(data)), "magic": number(0), "major": number(4), "minor": number(8), "devices": number(56),
		"memory 0 low": number(1600), "memory 0 high": number(1604), "memory 1 low": number(1608), "memory 2": number(1616),
		"cores 0": number(1728), "cores 1": number(1736), "cores 2": number(1744), "processes": number(2008896),
	}
	if diff := cmp.Diff(map[string]uint32{
		"length": 2008953, "magic": 19920718, "major": 1, "minor": 2, "devices": 2,
		"memory 0 low": 0, "memory 0 high": 1, "memory 1 low": 3 << 30, "memory 2": 0,
		"cores 0": 50, "cores 1": 100, "cores 2": 100, "processes": 2,
	}, layout); diff != "" {
		t.Errorf("region (-want +got):\n%s", diff)
	}
	lines, err := os.ReadFile(region + ReportSuffix)
	if err != nil || strings.Count(string(lines), "\n") != 2 {
		t.Errorf("reports beside the region: got %q, %v, want two lines", lines, err)
	}
}

// TestDoubleAbsent checks the cases in which there is nothing to report, or only what is wrong.
func TestDoubleAbsent(t *testing.T) {
	library, program := build(t)
	if got := run(t, program); got.Preloaded {
		t.Errorf("without the double: got %+v, want nothing preloaded", got)
	}
	if got := run(t, program, "LD_PRELOAD="+library); got.Preloaded {
		t.Errorf("without a region: got %+v, want nothing", got)
	}
	missing := filepath.Join(t.TempDir(), "no", "region")
	got := run(t, program, "LD_PRELOAD="+library, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+missing)
	if !got.Preloaded || got.RegionWritable || got.RegionError != "open: No such file or directory" {
		t.Errorf("region that cannot be made: got %+v, want the reason", got)
	}
}

// TestLimits checks how texts of limits are read.
func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		memory map[string]string
		want   []int64 // nil is an error
	}{
		"none":      {nil, []int64{}},
		"units":     {map[string]string{"0": "1g", "1": "2M", "2": "1024k", "3": "3145728", "4": "0"}, []int64{1024, 2, 1, 3, 0}},
		"gap":       {map[string]string{"0": "1g", "2": "1g"}, nil},
		"Gi":        {map[string]string{"0": "1Gi"}, nil},
		"twice":     {map[string]string{"0": "1mk"}, nil},
		"not a one": {map[string]string{"0": "m"}, nil},
	} {
		got, err := Report{Memory: test.memory}.MemoryMiB()
		if (err != nil) != (test.want == nil) || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
	if _, err := ParseReport(`{"preloaded":true,"surprise":1}`); err == nil {
		t.Error("report with an unknown field: got no error")
	}
}
