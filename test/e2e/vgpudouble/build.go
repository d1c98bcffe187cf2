// SPDX-License-Identifier: Apache-2.0

package vgpudouble

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/topodra/topodra/test/node"
)

var (
	//go:embed src/vgpudouble.c
	doubleSource []byte
	//go:embed src/gpuview.c
	viewSource []byte
)

const (
	// ImageRef is the image that [Image] makes.
	ImageRef = "docker.io/local/gpuview:1"
	// Program is the dynamically linked program in it; it prints a [Report].
	Program = "/bin/gpuview"
	// ReportSuffix is added to the region's path for the file with one line of JSON per process.
	ReportSuffix = ".double"
)

// Report is what the double saw in one process.
type Report struct {
	// Preloaded says whether the double was there at all, and had a region.
	Preloaded bool `json:"preloaded"`
	// PID is the process, as its own namespace counts.
	PID int `json:"pid"`
	// Order and Visible are CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES.
	Order   string `json:"order"`
	Visible string `json:"visible"`
	// Memory and Cores are the texts of CUDA_DEVICE_MEMORY_LIMIT_<i> and CUDA_DEVICE_SM_LIMIT_<i> that are set, by i.
	Memory map[string]string `json:"memory"`
	Cores  map[string]string `json:"cores"`
	// Region is CUDA_DEVICE_MEMORY_SHARED_CACHE; RegionError says why it cannot be used, if so.
	Region         string `json:"region"`
	RegionWritable bool   `json:"regionWritable"`
	RegionError    string `json:"regionError"`
}

// ParseReport reads what the program printed, or one line of the report file.
func ParseReport(line string) (Report, error) {
	var report Report
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil {
		return Report{}, fmt.Errorf("reading a report of the double from %q: %w", line, err)
	}
	return report, nil
}

// MemoryMiB returns the limits by number, in units of 1,048,576 bytes, as HAMi-core would read them; 0 is no limit. It is an
// error if numbers are left out.
func (r Report) MemoryMiB() ([]int64, error) { return byNumber(r.Memory, parseMiB) }

// CoresPercent returns the limits of compute by number. It is an error if numbers are left out.
func (r Report) CoresPercent() ([]int64, error) {
	return byNumber(r.Cores, func(text string) (int64, error) { return strconv.ParseInt(text, 0, 64) })
}

func byNumber(values map[string]string, parse func(string) (int64, error)) ([]int64, error) {
	out := make([]int64, len(values))
	for i := range out {
		text, ok := values[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("numbers of limits are not 0 to %d: %v", len(values)-1, values)
		}
		value, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("limit %d: %w", i, err)
		}
		out[i] = value
	}
	return out, nil
}

// parseMiB reads a number of bytes with a suffix of g, m or k.
func parseMiB(text string) (int64, error) {
	shift := 0
	digits := strings.TrimRightFunc(text, func(r rune) bool {
		unit := strings.IndexRune("kmg", r|0x20)
		if unit >= 0 {
			shift = 10 * (unit + 1)
		}
		return unit >= 0
	})
	if len(text)-len(digits) > 1 {
		return 0, fmt.Errorf("%q has more than one suffix", text)
	}
	value, err := strconv.ParseInt(digits, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number of bytes: %w", text, err)
	}
	return value << shift >> 20, nil
}

// Library builds the double in dir and returns its path.
func Library(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "libvgpu-double.so")
	return path, compile(ctx, doubleSource, path, "-shared", "-fPIC")
}

// Image builds gpuview in dir and returns an image with it and all of busybox.
func Image(ctx context.Context, dir string) (node.Image, error) {
	program := filepath.Join(dir, "gpuview")
	if err := compile(ctx, viewSource, program); err != nil {
		return node.Image{}, err
	}
	image, err := node.BusyboxImage(ctx, ImageRef)
	if err != nil {
		return node.Image{}, fmt.Errorf("making the image of gpuview: %w", err)
	}
	image.Files = append(image.Files, node.File{Path: Program, Source: program})
	libraries, err := dependencies(ctx, program)
	if err != nil {
		return node.Image{}, err
	}
	for _, library := range libraries {
		image.Files = append(image.Files, node.File{Path: library, Source: library})
	}
	return image, nil
}

// compile builds one C file.
func compile(ctx context.Context, source []byte, output string, flags ...string) error {
	args := append([]string{"-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-x", "c", "-", "-o", output}, flags...)
	gcc := exec.CommandContext(ctx, "gcc", args...)
	gcc.Stdin = bytes.NewReader(source)
	if said, err := gcc.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %q: %w: %s", filepath.Base(output), err, bytes.TrimSpace(said))
	}
	return nil
}

// dependency is a line of ldd: "libc.so.6 => /lib/… (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)".
var dependency = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$`)

// dependencies returns the paths of the dynamic linker and of the libraries that a program needs.
func dependencies(ctx context.Context, program string) ([]string, error) {
	said, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("asking for the libraries of %q: %w", program, err)
	}
	var paths []string
	for _, match := range dependency.FindAllSubmatch(said, -1) {
		path := string(match[1])
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("looking for a library of %q: %w", program, err)
		}
		paths = append(paths, path)
	}
	if len(paths) < 2 {
		return nil, fmt.Errorf("asking for the libraries of %q: want the linker and the C library, got %q", program, said)
	}
	return paths, nil
}
