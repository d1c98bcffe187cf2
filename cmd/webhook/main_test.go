// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/topodra/topodra/webhook"
)

// parsed returns the options of a command line and environment.
func parsed(t *testing.T, environment map[string]string, args ...string) (*options, error) {
	t.Helper()
	opts := newOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	opts.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	lookup := func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	}
	if err := setFromEnvironment(fs, lookup); err != nil {
		return nil, err
	}
	return opts, opts.complete()
}

func TestDefaultsOfFlags(t *testing.T) {
	t.Parallel()
	opts, err := parsed(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(webhook.DefaultConfig(), opts.config); diff != "" {
		t.Error(diff)
	}
	want := []string{"topodra-webhook.topodra-system.svc", "topodra-webhook.topodra-system", "topodra-webhook"}
	if diff := cmp.Diff(want, opts.certificateHosts()); diff != "" {
		t.Error(diff)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	environment := map[string]string{"TOPODRA_RESOURCE_CORES": "example.com/cores", "TOPODRA_DEFAULT_GPUS": "4", "TOPODRA_NAMESPACE": ""}
	opts, err := parsed(t, environment, "--resource-gpu=example.com/gpu", "--default-gpus=3", "--memory-sizes=32510,81251", "--foreign-scheduler=Ignore", "--privileged=Allow",
		"--replaced-scheduler=a,b", "--tls-host=127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	want := webhook.DefaultConfig()
	want.Vocabulary.Resources.GPU, want.Vocabulary.Resources.Cores, want.Vocabulary.DefaultGPUs = "example.com/gpu", "example.com/cores", 3
	want.MemorySizesMiB, want.Foreign, want.Privileged, want.ReplacedSchedulers = []int64{32510, 81251}, webhook.ForeignIgnore, webhook.PrivilegedAllow, []string{"a", "b"}
	if diff := cmp.Diff(want, opts.config); diff != "" {
		t.Error(diff)
	}
	if opts.namespace != "topodra-system" || opts.certificateHosts()[3] != "127.0.0.1" {
		t.Errorf("got %+v", opts)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--foreign-scheduler=Maybe":                             `foreignScheduler: Unsupported value: "Maybe"`,
		"--default-cores-percent=200":                           "defaultCoresPercent: Invalid value: 200",
		"--resource-gpu=a b":                                    "resources.gpu: Invalid value",
		"--template-grace=1ms":                                  "--template-grace is 1ms, it must be a second or more",
		"--certificate-lifetime=10s --certificate-period=2s":    "it must be at least six times --certificate-period",
		"--memory-sizes=0":                                      "memorySizesMiB[0]: Invalid value: 0",
		"--resource-memory=nvidia.com/gpu --resource-cores=x/y": "resources.memory: Duplicate value",
	} {
		split := strings.Split(args, " --")
		for i := range split[1:] {
			split[i+1] = "--" + split[i+1]
		}
		if _, err := parsed(t, nil, split...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	if _, err := parsed(t, map[string]string{"TOPODRA_SECURE_PORT": "x"}); err == nil || !strings.Contains(err.Error(), "reading environment variable TOPODRA_SECURE_PORT") {
		t.Errorf("got %v", err)
	}
	if _, err := newOptions().client(); err == nil || !strings.Contains(err.Error(), "outside of a pod, set --kubeconfig") {
		t.Errorf("got %v", err)
	}
}
