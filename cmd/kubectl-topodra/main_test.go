// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the expected output into the scripts instead of comparing with it")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kubectl-topodra":          func() { os.Exit(run()) },
		"kubectl_complete-topodra": func() { os.Exit(run()) },
	})
}

// TestScripts runs the program itself, as people call it.
func TestScripts(t *testing.T) {
	t.Parallel()
	machines, err := filepath.Abs("../../topology/topotest/machines")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("MACHINES", machines)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-such-kubeconfig"))
			return nil
		},
	})
}

// TestSignals: a signal ends the program at once while it waits for its input, and nothing is printed.
func TestSignals(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Args = []string{"kubectl-topodra", "plan", "--machine", "-", "--gpus", "1"} // see TestMain
			cmd.Stdout = &out
			cmd.WaitDelay = time.Second
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// More than a pipe holds: when it is written, the program is reading.
			if _, err := in.Write(bytes.Repeat([]byte(" "), 1<<18)); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			watchdog := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
			if err := cmd.Wait(); err == nil {
				t.Error("the exit status is 0")
			}
			if !watchdog.Stop() {
				t.Error("the signal did not end the program")
			}
			if out.Len() > 0 {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}
