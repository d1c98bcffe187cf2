// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/driver"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/nvml/probe"
	"github.com/topodra/topodra/driver/recorded"
)

// TestHealth: who looks, how often and what follows come from the flags.
func TestHealth(t *testing.T) {
	t.Parallel()
	base := []string{"--kubeconfig=" + kubeconfig(t), "--node-name=n", "--plugin-data-dir=/p", "--driver-root=/nowhere"}
	get := func(args ...string) *driver.HealthConfig {
		t.Helper()
		opts, err := parse(t, nil, append(base[:4:4], args...)...)
		if err != nil {
			t.Fatal(err)
		}
		config, err := opts.config()
		if err != nil {
			t.Fatal(err)
		}
		return config.Health
	}
	got := get()
	if _, ok := got.Prober.(*probe.Prober); !ok {
		t.Errorf("real GPUs: got prober %T", got.Prober)
	}
	got.Prober = nil
	want := &driver.HealthConfig{StateDir: "/p", Policy: health.Policy{IgnoredXIDs: health.DefaultIgnoredXIDs}, Period: 15 * time.Second, CleanLooks: 3, OtherAllocatorPeriod: 30 * time.Second,
		OtherAllocators: []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got = get("--machine=m.json", "--state-dir=/s", "--health-period=1s", "--health-clean-looks=5", "--taint-effects=fatal=NoExecute,xid=None", "--ignored-xids=13,99", "--other-allocators=a.b/c", "--on-violation=Taint")
	if _, ok := got.Prober.(*recorded.Prober); !ok {
		t.Errorf("a recording: got prober %T", got.Prober)
	}
	got.Prober = nil
	want = &driver.HealthConfig{StateDir: "/s", Period: time.Second, CleanLooks: 5, OtherAllocatorPeriod: 2 * time.Second, OtherAllocators: []string{"a.b/c"}, Policy: health.Policy{
		IgnoredXIDs: []uint64{13, 99}, Effects: map[health.Severity]resourceapi.DeviceTaintEffect{health.Fatal: "NoExecute"},
		ByKind: map[health.Kind]resourceapi.DeviceTaintEffect{health.KindXID: "None"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := get("--health-period=0", "--other-allocators="); got.Prober != nil || len(got.OtherAllocators) != 0 {
		t.Errorf("off: got %+v", got)
	}
	for want, flag := range map[string]string{
		`--taint-effects: reading effects of taints: the effect of "fatal" is "Often"`: "--taint-effects=fatal=Often",
		`"gpu" is not the name of an extended resource`:                                "--other-allocators=gpu",
		"-1s or -2s of looks at GPUs is negative":                                      "--health-period=-1s",
		"number -1 of clean looks is negative":                                         "--health-clean-looks=-1",
	} {
		opts, err := parse(t, nil, append(base[:4:4], "--machine=m.json", flag)...)
		if err == nil {
			_, err = opts.config()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", flag, err, want)
		}
	}
}
