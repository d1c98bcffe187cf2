// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/topodra/topodra/driver/checkpoint"
)

// restartWith starts the driver anew with further arguments. The end of the test starts it without them.
func (f *fixture) restartWith(args ...string) {
	f.Helper()
	restart := func(args ...string) {
		if err := f.driver.stop(); err != nil {
			f.Fatal(err)
		}
		if err := f.driver.start(f.ctx, args...); err != nil {
			f.Fatal(err)
		}
	}
	restart(args...)
	f.Cleanup(func() {
		f.extend(testTimeout)
		restart()
	})
}

// TestWithoutNRI: what a CDI spec can express works without NRI; what it cannot is refused, with the reason.
func TestWithoutNRI(t *testing.T) {
	f := newFixture(t)
	f.restartWith("--nri-socket=")
	f.claim("share", request{count: 2, memory: "12Gi", cores: "30"})
	f.checkCount(f.check(f.run(f.simplePod("share", "share")), "main"), 2)
	f.claim("parts", request{name: "a", memory: "2Gi"}, request{name: "b", memory: "3Gi"})
	parts := f.run(f.pod("parts", nil, nil, []box{{name: "a", uses: []use{{"parts", "a"}}}, {name: "b", uses: []use{{"parts", "b"}}}}))
	f.checkCount(f.check(parts, "a"), 1)
	f.checkCount(f.check(parts, "b"), 1)
	f.claim("whole", request{})
	f.check(f.run(f.simplePod("whole", "whole")), "main")

	// The kubelet does not ask about a pod that reserves a prepared claim later. It runs; the next reconciliation tells.
	f.run(f.simplePod("late", "share"))
	f.eventually("share", "SharedByContainers", `container "main" of pod "late"`, `container "main" of pod "share"`)

	f.claim("first", request{memory: "2Gi"})
	f.claim("second", request{memory: "3Gi"})
	f.create(f.simplePod("two-claims", "first", "second"))
	f.eventually("two-claims", "FailedPrepareDynamicResources", "NRI", "put the requests into one claim")
	f.claim("twice", request{memory: "2Gi"})
	uses := []use{{claim: "twice"}}
	f.create(f.pod("init-and-app", []box{{name: "init", uses: uses, command: viewCommand}}, nil, []box{{uses: uses}}))
	f.eventually("twice", "NeedsNRI", `container "init"`, `container "main"`)
}

// TestCorruptCheckpoint: it is set aside and made anew; pods that run keep what they have, and go cleanly.
func TestCorruptCheckpoint(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	if err := f.driver.kill(); err != nil {
		t.Fatal(err)
	}
	path := checkpoint.NewStore(f.driver.stateDir, nodeName).Path()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.checkSurvivors(s, "new")
	f.nodeEvent("CheckpointCorrupt", path)
	aside, err := filepath.Glob(filepath.Join(f.driver.stateDir, "checkpoint.corrupt-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("checkpoints that were set aside: got %q, %v, want one", aside, err)
	}
}

// TestOrphans: what is on disk of claims that nobody has any more goes at the start of the driver.
func TestOrphans(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	if err := f.driver.stop(); err != nil {
		t.Fatal(err)
	}
	// A spec as the driver writes it, under another UID.
	specs, err := filepath.Glob(filepath.Join(f.node.CDIDir(), "*"))
	if err != nil || len(specs) != 2 {
		t.Fatalf("specs: got %q, %v, want two", specs, err)
	}
	content, err := os.ReadFile(specs[0])
	if err != nil {
		t.Fatal(err)
	}
	var old string
	for _, name := range []string{"old-share", "old-whole"} {
		if uid := string(f.claimOf(s.share, name).UID); strings.Contains(specs[0], uid) {
			old = uid
		}
	}
	if old == "" || !json.Valid(content) {
		t.Fatalf("spec %q: want the UID of a claim in its name and JSON in it: %s", specs[0], content)
	}
	stray := string(uuid.NewUUID())
	orphan := strings.ReplaceAll(specs[0], old, stray)
	if err := os.WriteFile(orphan, []byte(strings.ReplaceAll(string(content), old, stray)), 0o600); err != nil {
		t.Fatal(err)
	}
	region := f.path("regions", "claims", stray, "pod_main")
	if err := os.MkdirAll(region, 0o755); err != nil { //nolint:gosec // as the driver makes it
		t.Fatal(err)
	}
	foreign := filepath.Join(f.node.CDIDir(), "vendor.example-device.json")
	if err := os.WriteFile(foreign, []byte(`{"cdiVersion":"0.6.0","kind":"vendor.example/device","devices":[{"name":"x","containerEdits":{"env":["A=b"]}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(foreign); err != nil {
			t.Errorf("spec of another driver: %v", err)
		}
	})
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.waitFor("the orphans to be gone", func() error {
		for _, path := range []string{orphan, filepath.Dir(region)} {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				return fmt.Errorf("%q is still there", path)
			}
		}
		return nil
	})
	f.checkSurvivors(s, "new")
}

// TestNoLibrary: without anything to limit with, the node offers its GPUs whole only, and says why. Shares stay pending.
func TestNoLibrary(t *testing.T) {
	f := newFixture(t)
	f.restartWith("--hami-core-library=" + filepath.Join(f.node.Dir(), "no-such-library.so"))
	f.nodeEvent("GPULimitsCannotBeEnforced", "no-such-library.so")
	f.waitFor("GPUs to be offered whole only", func() error {
		devices, err := f.published(f.ctx)
		for name, device := range devices {
			if device.memory > 0 {
				return fmt.Errorf("device %q is offered with %d bytes", name, device.memory)
			}
		}
		return err
	})
	f.claim("share", request{memory: "4Gi"})
	f.create(f.simplePod("share", "share"))
	f.claim("whole", request{count: 2})
	f.checkCount(f.check(f.run(f.simplePod("whole", "whole")), "main"), 2)
	f.eventually("share", "FailedScheduling")
	if _, err := f.isRunning("share"); err == nil {
		t.Error("a share runs although nothing can limit it")
	}
}

// nodeEvent waits for an event of the node with a reason and a word in its message.
func (f *fixture) nodeEvent(reason, word string) {
	f.Helper()
	f.waitFor(fmt.Sprintf("event %q of the node", reason), func() error {
		list, err := f.client.CoreV1().Events(metav1.NamespaceAll).List(f.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=" + reason})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if strings.Contains(list.Items[i].Message, word) {
				return nil
			}
		}
		return fmt.Errorf("%d events of that reason, none with %q", len(list.Items), word)
	})
}

// TestSharingConfig: settings reach the container; what takes limits away may come from a class alone.
func TestSharingConfig(t *testing.T) {
	f := newFixture(t)
	f.configuredClaim("high", "", `"sharing":{"taskPriority":"High","corePolicy":"Force","logLevel":"Debug"}`, request{memory: "4Gi", cores: "50"})
	high := f.run(f.simplePod("high", "high"))
	f.check(high, "main")
	env := f.look(high, "main").env
	for name, want := range map[string]string{"CUDA_TASK_PRIORITY": "0", "GPU_CORE_UTILIZATION_POLICY": "FORCE", "LIBCUDA_LOG_LEVEL": "4"} {
		if env[name] != want {
			t.Errorf("variable %s: got %q, want %q", name, env[name], want)
		}
	}
	f.configuredClaim("loose", "", `"sharing":{"enforcement":"None"}`, request{memory: "4Gi"})
	f.create(f.simplePod("loose", "loose"))
	f.eventually("loose", "BadConfiguration", "only the configuration of a DeviceClass may take limits away")

	f.class("counted-only", `"sharing":{"enforcement":"None"}`)
	f.configuredClaim("counted", "counted-only", "", request{memory: "4Gi"})
	counted := f.run(f.simplePod("counted", "counted"))
	f.checkNoLimits("container of a claim that is only counted", f.look(counted, "main"))
}
