// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
)

// Options of Run. All but Limits and Paths are needed.
type Options struct {
	// Source finds the GPUs, Base knows what containers need for them.
	Source device.Source
	Base   cdi.Base

	// Paths maps paths of the host into this process's file system.
	Paths cdi.PathMap

	// Limits says whether the GPU driver can limit memory by itself; nil does not
	// look.
	Limits func() error

	// Out is the directory for the results. It must exist.
	Out string

	// Name of the recording.
	Name string
}

// Names of the files in Options.Out.
const (
	MachineFile   = "machine.json"  // the recording, for topology/capture and --machine
	SnapshotFile  = "snapshot.json" // all that discovery found
	PublishedFile = "published.json"
	SpecFile      = "cdi.json"
	ReportFile    = "report.json"
)

// claim is who the CDI spec is for.
const claim = "00000000-0000-0000-0000-000000000000"

// Check is one thing that was looked at.
type Check struct {
	Name    string   `json:"name"`
	Error   string   `json:"error,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Seconds float64  `json:"seconds"`
}

// Report is the result of Run.
type Report struct {
	Recorded time.Time `json:"recorded"`
	Checks   []Check   `json:"checks"`
}

// Failed lists the checks that failed.
func (r *Report) Failed() []string {
	var out []string
	for _, check := range r.Checks {
		if check.Error != "" {
			out = append(out, check.Name+": "+check.Error)
		}
	}
	return out
}

// run is one call of Run.
type run struct {
	options  Options
	report   Report
	snapshot *device.Snapshot
}

// Run makes all checks, writes the files and returns the report, which is written,
// too. An error means that there is no report.
func Run(ctx context.Context, options Options) (*Report, error) {
	r := &run{options: options, report: Report{Recorded: time.Now().UTC().Truncate(time.Second)}}
	r.check("discovery", func(note func(string)) error { return r.discover(ctx, note) })
	if r.snapshot != nil {
		r.check("recording", r.record)
		r.check("publishing", r.publish)
		r.check("cdi", func(note func(string)) error { return r.cdi(ctx, note) })
		r.check("discovery again", func(func(string)) error { return r.again(ctx) })
	}
	if options.Limits != nil {
		r.check("memory limits of the GPU driver", func(note func(string)) error {
			if err := options.Limits(); err != nil {
				note("not supported here: " + err.Error())
			}
			return nil
		})
	}
	return &r.report, r.write(ReportFile, &r.report)
}

// check notes how a step went.
func (r *run) check(name string, step func(note func(string)) error) {
	start := time.Now()
	entry := Check{Name: name}
	err := step(func(text string) { entry.Notes = append(entry.Notes, text) })
	if err != nil {
		entry.Error = err.Error()
	}
	entry.Seconds = time.Since(start).Seconds()
	r.report.Checks = append(r.report.Checks, entry)
}

// write puts a value into a file of the results.
func (r *run) write(name string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(r.options.Out, name), append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}

// discover asks the source. A machine without GPUs fails.
func (r *run) discover(ctx context.Context, note func(string)) error {
	snapshot, err := r.options.Source.Discover(ctx)
	if err != nil {
		return err
	}
	for _, warning := range snapshot.Warnings {
		note(warning)
	}
	if len(snapshot.GPUs) == 0 {
		return errors.New("there are no GPUs")
	}
	if err := errors.Join(snapshot.Validate(), r.write(SnapshotFile, snapshot)); err != nil {
		return err
	}
	for i := range snapshot.GPUs {
		gpu := &snapshot.GPUs[i]
		note(fmt.Sprintf("GPU %d is %s, %s at %s, with %d MiB", i, gpu.ProductName, gpu.UUID, gpu.PCIAddress, gpu.Memory/device.MiB))
	}
	r.snapshot = snapshot
	return nil
}

// record writes the links as a recording and reads them back.
func (r *run) record(func(string)) error {
	machine := r.snapshot.Machine
	if err := r.write(MachineFile, recording(r.options.Name, r.snapshot)); err != nil {
		return err
	}
	back, err := capture.Load(filepath.Join(r.options.Out, MachineFile))
	if err != nil {
		return err
	}
	for i := range machine.GPUs {
		for j := range machine.GPUs {
			if machine.NVLinks[i][j] != back.Machine.NVLinks[i][j] || machine.PCIe[i][j] != back.Machine.PCIe[i][j] {
				return fmt.Errorf("GPU %d and %d are joined by %s, the recording says %s", i, j, machine.LinkName(i, j), back.Machine.LinkName(i, j))
			}
		}
		if machine.GPUs[i].NUMA != back.Machine.GPUs[i].NUMA {
			return fmt.Errorf("GPU %d is at NUMA node %d, the recording says %d", i, machine.GPUs[i].NUMA, back.Machine.GPUs[i].NUMA)
		}
	}
	return nil
}

// recording is the form that topology/capture reads.
func recording(name string, snapshot *device.Snapshot) map[string]any {
	machine := snapshot.Machine
	var gpus []map[string]any
	var products []string
	links, classes := make([][]string, machine.N()), make([][]string, machine.N())
	rate := topology.MBps(0)
	for i := range machine.GPUs {
		gpu := map[string]any{"index": i}
		if numa := machine.GPUs[i].NUMA; numa != topology.NoNUMA {
			gpu["numa"] = numa
		}
		gpus = append(gpus, gpu)
		products = append(products, snapshot.GPUs[i].ProductName)
		rate = max(rate, machine.GPUs[i].NVLinkMBps)
		for j := range machine.GPUs {
			links[i] = append(links[i], cell(i, j, machine.LinkName(i, j)))
			classes[i] = append(classes[i], cell(i, j, machine.PCIe[i][j].String()))
		}
	}
	slices.Sort(products)
	out := map[string]any{"name": name, "hardware": fmt.Sprintf("%dx %s", machine.N(), strings.Join(slices.Compact(products), ", ")),
		"source": "test/gpu", "kind": "NVML", "gpus": gpus, "links": links, "pcieClass": classes}
	if rate > 0 {
		out["nvlink_gbps_per_link"] = float64(rate) / 1000
	}
	return out
}

// cell of a matrix.
func cell(i, j int, text string) string {
	if i == j {
		return "X"
	}
	return text
}

// publish describes the devices as a ResourceSlice would.
func (r *run) publish(note func(string)) error {
	published, err := publish.Build(r.snapshot, publish.Options{NodeName: r.options.Name})
	if err != nil {
		return err
	}
	for _, warning := range published.Warnings {
		note(warning)
	}
	return r.write(PublishedFile, &published.Resources)
}

// uuids of all devices that can be handed out.
func (r *run) uuids() []string {
	var out []string
	for i := range r.snapshot.GPUs {
		gpu := &r.snapshot.GPUs[i]
		if !gpu.MIGEnabled {
			out = append(out, string(gpu.UUID))
		}
		for k := range gpu.MIGDevices {
			out = append(out, string(gpu.MIGDevices[k].UUID))
		}
	}
	return out
}

// cdi makes the spec of a claim for all devices, writes it by the CDI library, and
// looks for every path of the host in it.
func (r *run) cdi(ctx context.Context, note func(string)) (finalErr error) {
	uuids := r.uuids()
	base, err := r.options.Base.Edits(ctx, uuids)
	if err != nil {
		return err
	}
	var devices []cdi.Device
	for i, uuid := range uuids {
		name := fmt.Sprintf("device-%d", i)
		devices = append(devices, cdi.Device{Name: cdi.Name(claim, "all", name, ""), UUID: uuid, DeviceName: name})
	}
	spec, err := cdi.Build(base, devices)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "topodra-cdi-")
	if err != nil {
		return fmt.Errorf("making a directory for the spec: %w", err)
	}
	defer func() { finalErr = errors.Join(finalErr, os.RemoveAll(temp)) }()
	dir, err := cdi.NewDir(temp)
	if err != nil {
		return err
	}
	if err := errors.Join(dir.Write(claim, spec), r.write(SpecFile, spec)); err != nil {
		return err
	}
	note(fmt.Sprintf("%d devices, %d paths of the host", len(devices), len(cdi.HostPaths(spec))))
	return r.options.Paths.Check(spec)
}

// again makes sure that a second look finds the same devices.
func (r *run) again(ctx context.Context) error {
	before := r.uuids()
	snapshot, err := r.options.Source.Discover(ctx)
	if err != nil {
		return err
	}
	r.snapshot = snapshot
	if after := r.uuids(); !slices.Equal(before, after) {
		return fmt.Errorf("first there were %q, then %q", before, after)
	}
	return nil
}
