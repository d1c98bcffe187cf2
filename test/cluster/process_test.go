// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentEnv turns the test binary into a parent that is killed, see TestParentDies.
const parentEnv = "TOPODRA_TEST_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentEnv); log != "" {
		beParent(log)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// beParent starts a child, writes its process id and waits to be killed. It returns when something goes wrong.
func beParent(log string) {
	p, err := spawn(processSpec{name: "child", path: "/bin/sleep", args: []string{"600"}, logPath: log, grace: time.Second})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Fprintln(os.Stdout, p.PID())
	<-p.Done()
}

// spawnSleeper starts a process that lives long, through a shell script that ends in exec.
func spawnSleeper(t *testing.T, script string, grace time.Duration) *Process {
	t.Helper()
	p, err := spawn(processSpec{
		name: "sleeper", path: "/bin/sh", args: []string{"-c", script + "; echo up; exec sleep 600"},
		logPath: filepath.Join(t.TempDir(), "sleeper.log"), grace: grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	err = p.waitReady(testContext(t), readyTimeout, func(context.Context) error {
		if p.LogTail() != "  up" {
			return errors.New("not up")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestParentDies kills a parent without warning and checks that its child ends too.
func TestParentDies(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), exe)
	parent.Env = append(os.Environ(), parentEnv+"="+filepath.Join(t.TempDir(), "child.log"))
	parent.Stderr = os.Stderr
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	killErr := parent.Process.Kill()
	waitErr := parent.Wait()
	if err != nil || killErr != nil {
		t.Fatal(err, killErr, waitErr)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("child %d outlives its parent", pid)
		}
	}
}

// alive reports whether a process is there and no zombie, which an orphan can remain where nobody reaps it.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// TestThreadEnds starts a process from a goroutine whose thread ends, and checks that the process does not end with it.
func TestThreadEnds(t *testing.T) {
	started := make(chan *Process)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p, err := spawn(processSpec{
			name: "child", path: "/bin/sleep", args: []string{"600"}, logPath: filepath.Join(t.TempDir(), "child.log"), grace: time.Minute,
		})
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	p := <-started
	if p == nil {
		t.FailNow()
	}
	select {
	case <-p.Done():
		t.Error(p.Err())
	case <-time.After(time.Second):
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestStopKills checks that a process that ignores SIGTERM is killed after its grace period.
func TestStopKills(t *testing.T) {
	p := spawnSleeper(t, "trap '' TERM", 200*time.Millisecond)
	start := time.Now()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("stopped after %s, before the end of the grace period", took)
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", p.PID(), err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped a second time: %v", err)
	}
	if err := p.Err(); err != nil {
		t.Errorf("error after Stop: %v", err)
	}
}

// TestStopGraceful checks that a process gets the chance to end by itself.
func TestStopGraceful(t *testing.T) {
	p := spawnSleeper(t, "true", 10*time.Minute)
	if err := p.Stop(); err != nil { // sleep ends on SIGTERM; waiting for the grace period would exceed the test's time
		t.Fatal(err)
	}
}

// TestOwnGroup checks that a signal to the foreground group of a terminal does not reach the children.
func TestOwnGroup(t *testing.T) {
	p := spawnSleeper(t, "true", time.Minute)
	group, err := syscall.Getpgid(p.PID())
	if err != nil || group != p.PID() {
		t.Errorf("process group: got %d, %v, want %d", group, err, p.PID())
	}
}

// TestSpawnFails checks that a program that cannot be started is an error at once.
func TestSpawnFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if _, err := spawn(processSpec{name: "none", path: "/no/such/program", logPath: log}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: got %v, want %v", err, os.ErrNotExist)
	}
	if _, err := spawn(processSpec{name: "none", path: "/bin/sleep", logPath: "/no/such/dir/log"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing log directory: got %v, want %v", err, os.ErrNotExist)
	}
}
