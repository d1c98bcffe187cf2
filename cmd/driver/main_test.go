// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/publish"
)

// kubeconfig writes a file that leads nowhere.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// parse returns the options after flags and environment.
func parse(t *testing.T, environment map[string]string, args ...string) (*options, error) {
	t.Helper()
	opts := newOptions()
	cmd := newCommand()
	cmd.ResetFlags()
	opts.addFlags(cmd.Flags())
	if err := cmd.Flags().Parse(args); err != nil {
		return nil, err
	}
	return opts, setFromEnvironment(cmd.Flags(), func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	path := kubeconfig(t)
	opts, err := parse(t, map[string]string{
		"NODE_NAME": "from-node-name", "TOPODRA_MAX_SHARERS": "7", "TOPODRA_MIN_MEMORY": "1Gi", "TOPODRA_REQUIRE_CORES": "true",
		"TOPODRA_RESCAN_PERIOD": "5s", "TOPODRA_HAMI_METRIC_ALIASES": "true", "TOPODRA_MACHINE": "m.json",
	}, "--kubeconfig="+path, "--max-sharers=3", "--memory-reserve=1500", "--plugin-registry-dir=/r", "--plugin-data-dir=/p")
	if err != nil {
		t.Fatal(err)
	}
	config, err := opts.config()
	if err != nil {
		t.Fatal(err)
	}
	want := publish.Options{NodeName: "from-node-name", RequireCores: true, MinMemory: 1 << 30, MaxSharers: 3, MemoryReserve: 1500}
	if diff := cmp.Diff(want, config.Publish); diff != "" {
		t.Error(diff)
	}
	if config.RescanPeriod != 5*time.Second || config.RegistryDir != "/r" || config.DataDir != "/p" || config.HTTPAddress != ":31995" || !config.HAMiMetricAliases || config.Client == nil || config.Source == nil {
		t.Errorf("got %+v", config)
	}
	opts, err = parse(t, map[string]string{"NODE_NAME": "b", "TOPODRA_NODE_NAME": "a"})
	if err != nil || opts.nodeName != "a" {
		t.Errorf("two variables: got %q, %v", opts.nodeName, err)
	}
}

func TestConfigRejects(t *testing.T) {
	t.Parallel()
	path := kubeconfig(t)
	good := []string{"--kubeconfig=" + path, "--node-name=n", "--machine=m.json", "--plugin-registry-dir=/r", "--plugin-data-dir=/p"}
	for want, args := range map[string][]string{
		"set --node-name or NODE_NAME":                   {"--node-name="},
		"--min-memory is -1, it must not be negative":    {"--min-memory=-1"},
		"--memory-reserve is 2Pi, more than any GPU has": {"--memory-reserve=2Pi"},
		"outside of a pod, set --kubeconfig":             {"--kubeconfig="},
		"configuring access to the API server":           {"--kubeconfig=" + path + "x"},
		"maximum number of sharers -1 is negative":       {"--max-sharers=-1"},
		"rescan period 5ms is less than 1s":              {"--rescan-period=5ms"},
		"is too long":                                    {"--plugin-data-dir=/" + strings.Repeat("p", 200)},
		"invalid argument":                               {"--min-memory=much"},
	} {
		opts, err := parse(t, nil, append(good, args...)...)
		if err == nil {
			_, err = opts.config()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", args, err, want)
		}
	}
	_, err := parse(t, map[string]string{"TOPODRA_MAX_SHARERS": "many", "TOPODRA_RESCAN_PERIOD": "soon"}, good...)
	if err == nil || !strings.Contains(err.Error(), "environment variable TOPODRA_MAX_SHARERS") || !strings.Contains(err.Error(), "environment variable TOPODRA_RESCAN_PERIOD") {
		t.Errorf("environment: got error %v", err)
	}
}

// TestSources: a recording takes the place of the node's own GPUs.
func TestSources(t *testing.T) {
	t.Parallel()
	recorded := &options{machine: filepath.Join(t.TempDir(), "none.json"), nodeName: "n"}
	source, err := recorded.source()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("recording: got error %v", err)
	}
	hardware := &options{driverRoot: t.TempDir(), sysfsRoot: t.TempDir()}
	if source, err = hardware.source(); err != nil || source == nil {
		t.Errorf("NVML: got %v, %v", source, err)
	}
}

// TestHangups: signals are delivered one after another, and none while nobody waits
// for longer than one.
func TestHangups(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rescan := hangups(ctx)
	for range 3 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case <-rescan:
		case <-time.After(time.Minute):
			t.Fatal("the signal was not delivered")
		}
	}
	select {
	case <-rescan:
		t.Error("a signal was delivered twice")
	case <-time.After(50 * time.Millisecond):
	}
}

// TestClaims: paths, and what limits shares, follow from the flags.
func TestClaims(t *testing.T) {
	t.Parallel()
	base := []string{"--kubeconfig=" + kubeconfig(t), "--node-name=n", "--machine=m.json", "--plugin-data-dir=/p", "--pod-uid=uid"}
	opts, err := parse(t, map[string]string{"POD_UID": "other"}, append(base, "--hami-core-library=/lib.so", "--host-root=/host", "--cdi-dir=/cdi")...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := opts.config()
	if err != nil {
		t.Fatal(err)
	}
	claims := config.Claims
	if claims.StateDir != "/p" || claims.CDIDir != "/cdi" || claims.PodUID != "uid" || claims.Enforcer.Name() != "hami-core" || claims.NRISocket == "" || claims.OnViolation != "Tell" {
		t.Errorf("got %+v", claims)
	}
	for host, want := range map[string]string{"/usr/lib/x": "/host/usr/lib/x", "/p/hami-core/lib": "/p/hami-core/lib", "/cdi/x": "/cdi/x"} {
		if got := claims.Paths.Local(host); got != want {
			t.Errorf("%q is looked for at %q, want %q", host, got, want)
		}
	}
	if opts, err = parse(t, map[string]string{"POD_UID": "from-environment"}, append(base[:4:4], "--state-dir=/s", "--nri-socket=")...); err != nil {
		t.Fatal(err)
	}
	if config, err = opts.config(); err != nil {
		t.Fatal(err)
	}
	if claims := config.Claims; claims.StateDir != "/s" || claims.PodUID != "from-environment" || claims.Enforcer != nil || claims.NRISocket != "" || len(claims.Paths) > 0 {
		t.Errorf("got %+v", claims)
	}
	for flag, want := range map[string]string{
		"--enforcement=magic": `--enforcement is "magic"`, "--enforcement=nvml-memory-limit": "needs real GPUs", "--on-violation=Shout": `"Shout" for violations is unknown`,
		"--reconcile-period=-1s": "negative",
	} {
		opts, err := parse(t, nil, append(base[:5:5], flag)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opts.config(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", flag, err, want)
		}
	}
}
