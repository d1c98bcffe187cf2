// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/recorded"
	"github.com/topodra/topodra/topology/topotest"
)

// options look at a recorded machine as if it were there.
func options(t *testing.T, machine string) Options {
	t.Helper()
	content, err := topotest.Bytes(machine)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), machine+".json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{Source: recorded.New(path, "node"), Base: cdi.Simulated{}, Out: t.TempDir(), Name: "again", Limits: func() error { return errors.New("no symbol") }}
}

// TestRun: what is written of every recorded machine says the same again.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, machine := range topotest.Names() {
		o := options(t, machine)
		report, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if failed := report.Failed(); len(failed) > 0 || len(report.Checks) != 6 {
			t.Errorf("%s: %q of %d checks failed", machine, failed, len(report.Checks))
		}
		for _, name := range []string{MachineFile, SnapshotFile, PublishedFile, SpecFile, ReportFile} {
			content, err := os.ReadFile(filepath.Join(o.Out, name))
			if err != nil || !json.Valid(content) {
				t.Errorf("%s: %s: %v", machine, name, err)
			}
		}
		// The recording is one for the driver.
		snapshot, err := recorded.New(filepath.Join(o.Out, MachineFile), "node").Discover(t.Context())
		if err != nil {
			t.Fatalf("%s: reading the recording: %v", machine, err)
		}
		before, err := o.Source.Discover(t.Context())
		if err != nil || len(snapshot.GPUs) != len(before.GPUs) {
			t.Errorf("%s: the recording has %d GPUs, the machine %d, %v", machine, len(snapshot.GPUs), len(before.GPUs), err)
		}
	}
}

// changing finds other GPUs each time.
type changing struct {
	sources []device.Source
}

func (c *changing) Discover(ctx context.Context) (*device.Snapshot, error) {
	source := c.sources[0]
	c.sources = c.sources[1:]
	return source.Discover(ctx)
}

// missing needs a file that is not there.
type missing struct{}

func (missing) Edits(ctx context.Context, uuids []string) (*cdi.BaseEdits, error) {
	edits, err := cdi.Simulated{}.Edits(ctx, uuids)
	edits.Common.DeviceNodes = []*specs.DeviceNode{{Path: "/dev/topodra-is-not-there"}}
	return edits, err
}

// TestFailures: each check fails alone, and the others are made all the same.
func TestFailures(t *testing.T) {
	t.Parallel()
	machine, other := "h100nvl_8x_pairs", "a6000_3x_pair_plus_one"
	for want, change := range map[string]func(o *Options){
		"discovery: ": func(o *Options) { o.Source = recorded.New("/nowhere.json", "node") },
		`cdi: checking what the CDI spec refers to`:      func(o *Options) { o.Base = missing{} },
		"discovery again: first there were":              func(o *Options) { o.Source = &changing{[]device.Source{o.Source, options(t, other).Source}} },
		`publishing: checking publishing options: the n`: func(o *Options) { o.Name = "" },
	} {
		o := options(t, machine)
		change(&o)
		report, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if failed := report.Failed(); len(failed) != 1 || !strings.HasPrefix(failed[0], want) {
			t.Errorf("%s: got %q", want, failed)
		}
	}
}

// TestElsewhere: where there is no GPU, the script says so and is content.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	script := exec.CommandContext(t.Context(), "./run.sh")
	script.Env = append(os.Environ(), "DRIVER_ROOT="+t.TempDir(), "OUT="+out)
	said, err := script.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(said), "skipped: this machine has no NVIDIA GPU") || strings.Count(string(said), "\n") != 1 {
		t.Errorf("got %q, %v", said, err)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has made %q: %v", out, err)
	}
}
