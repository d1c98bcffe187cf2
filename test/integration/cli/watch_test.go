// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/topodra/topodra/test/cluster"
)

// watched is a running "status -w".
type watched struct {
	cmd    *exec.Cmd
	lines  chan string
	errOut bytes.Buffer
}

// watch starts it for a user; it ends with the test at the latest.
func (e *env) watch(t *testing.T, user string, args ...string) *watched {
	t.Helper()
	kubeconfig, err := e.Kubeconfig(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{cmd: exec.CommandContext(t.Context(), e.program, append([]string{"status", "-w"}, args...)...), lines: make(chan string, 1000)}
	w.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	w.cmd.Stderr = &w.errOut
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			w.lines <- scanner.Text()
		}
	}()
	return w
}

// until reads lines until one contains the text, and returns all of them.
func (w *watched) until(t *testing.T, text string) []string {
	t.Helper()
	var seen []string
	timeout := time.After(time.Minute)
	for {
		select {
		case line, ok := <-w.lines:
			if !ok {
				t.Fatalf("the watch ended before it showed %q; it said %q\n%s", text, w.errOut.String(), strings.Join(seen, "\n"))
			}
			if seen = append(seen, line); strings.Contains(line, text) {
				return seen
			}
		case <-timeout:
			t.Fatalf("nothing shows %q:\n%s", text, strings.Join(seen, "\n"))
		}
	}
}

// interrupt ends it as Ctrl-C does, and returns what it had still to say.
func (w *watched) interrupt(t *testing.T, signal os.Signal) []string {
	t.Helper()
	if err := w.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(20*time.Second, func() { _ = w.cmd.Process.Kill() })
	var rest []string
	for line := range w.lines {
		rest = append(rest, line)
	}
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("after %s: %v, %s", signal, err, w.errOut.String())
	}
	if !watchdog.Stop() {
		t.Errorf("%s did not end the watch", signal)
	}
	return rest
}

// TestWatch: pictures follow changes, nothing follows none, and a signal ends it.
func TestWatch(t *testing.T) {
	e := newEnv(t, "")
	e.addNode(t, "pairs", "a30_4x_pairs")
	e.startOurs(t)

	// With list and watch on slices and claims alone.
	text, lines := e.watch(t, watcher), e.watch(t, cluster.UserAdmin, "-o", "json")
	text.until(t, "No claim holds any of them.")
	lines.until(t, `"claims":[]`)
	e.apply(t, claimYAML("two", "{deviceClassName: gpu.topodra.dev, count: 2}", "")+podYAML("two", "", "{name: gpus, resourceClaimName: two}"))
	seen := text.until(t, "two")
	if !strings.Contains(strings.Join(seen, "\n"), "NODE") || seen[0] != "" {
		t.Errorf("a new picture is not one of its own after an empty line:\n%s", strings.Join(seen, "\n"))
	}
	for _, line := range lines.until(t, `"name":"two"`) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not a document per line: %q", line)
		}
	}
	e.awaitRunning(t, "two")

	// What does not change the picture is not shown: the claim's labels say nothing about GPUs.
	e.apply(t, strings.Replace(claimYAML("two", "{deviceClassName: gpu.topodra.dev, count: 2}", ""), "namespace: default", "namespace: default, labels: {a: b}", 1))
	e.apply(t, claimYAML("three", "{deviceClassName: gpu.topodra.dev, count: 2}", "")+podYAML("three", "", "{name: gpus, resourceClaimName: three}"))
	pictures := 0
	for _, line := range lines.until(t, `"name":"three"`) {
		if strings.Contains(line, `"nodes":`) {
			pictures++
		}
	}
	if pictures > 2 { // the pod's reservation may come after the allocation
		t.Errorf("%d pictures for one change", pictures)
	}
	if rest := text.interrupt(t, os.Interrupt); strings.Contains(strings.Join(rest, "\n"), "error") {
		t.Errorf("after the interrupt: %q", rest)
	}
	lines.interrupt(t, syscall.SIGTERM)
}
