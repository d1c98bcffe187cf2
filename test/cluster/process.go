// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// logTailLines is how many lines of a log go into an error message.
	logTailLines = 15
	// logTailBytes bounds what is read from the end of a log for it.
	logTailBytes = 16 << 10
)

// Process is one running child process. Its methods may be called from several goroutines.
type Process struct {
	// Name is the name under which the process was started; its log file is named after it.
	Name string
	// LogPath is the file that holds the standard output and standard error of the process.
	LogPath string
	// Addr is the host:port that the process serves HTTPS on, with /metrics for schedulers; empty if it serves nothing.
	Addr string

	grace    time.Duration // between SIGTERM and SIGKILL
	certFile string        // what the server at Addr identifies itself with
	token    string        // what it is asked with; may be empty
	cmd      *exec.Cmd
	done     chan struct{} // closed once the process has been reaped

	mu       sync.Mutex
	stopping bool  // somebody asked for the end: an exit is not a failure
	waitErr  error // result of Wait, valid once done is closed
}

// processSpec says what to run.
type processSpec struct {
	name    string
	path    string
	args    []string
	dir     string // working directory
	logPath string
	grace   time.Duration
}

// spawn starts a process. The child dies with this process: see the package comment about the locked thread.
func spawn(spec processSpec) (*Process, error) {
	log, err := os.Create(spec.logPath)
	if err != nil {
		return nil, fmt.Errorf("creating the log of %q: %w", spec.name, err)
	}
	p := &Process{Name: spec.name, LogPath: spec.logPath, grace: spec.grace, done: make(chan struct{})}
	p.cmd = exec.Command(spec.path, spec.args...) // ended by Stop: a context would kill it without the grace period
	p.cmd.Dir = spec.dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // Ctrl-C in a terminal reaches only the parent, which then stops its children in order
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	go p.run(started)
	err = <-started
	if closeErr := log.Close(); err == nil && closeErr != nil {
		err = errors.Join(closeErr, p.Stop())
	}
	if err != nil {
		return nil, fmt.Errorf("starting %q (%s): %w", spec.name, spec.path, err)
	}
	return p, nil
}

// run forks the child and awaits it on a thread that nothing else uses. The thread is never unlocked: it ends with this
// goroutine, which is after the child has been reaped.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	p.mu.Lock()
	p.waitErr = err
	p.mu.Unlock()
	close(p.done)
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil while the process runs and after an end that Stop asked for; else an error that says how the process
// ended, with the last lines of its log.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil
	}
	how := "exit status 0"
	if p.waitErr != nil {
		how = p.waitErr.Error()
	}
	return fmt.Errorf("process %q ended by itself (%s); last lines of %s:\n%s", p.Name, how, p.LogPath, p.LogTail())
}

// Signal sends a signal to the process, for example SIGHUP to a driver. A process that ends by it has ended by itself, as
// far as Err is concerned.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %q to %q: %w", sig, p.Name, err)
	}
	return nil
}

// Stop ends the process: SIGTERM, and SIGKILL when it still runs after its grace period. It returns when the process has
// been reaped. Further calls do nothing.
func (p *Process) Stop() error {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	if err := p.terminate(syscall.SIGTERM, p.grace); err == nil {
		return nil
	}
	// A killed process is gone in no time; a longer wait means that the kernel cannot end it.
	return p.terminate(syscall.SIGKILL, 30*time.Second)
}

// terminate sends sig and waits at most d for the end.
func (p *Process) terminate(sig os.Signal, d time.Duration) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %q to %q: %w", sig, p.Name, err)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("stopping %q (pid %d): still there %s after %q", p.Name, p.PID(), d, sig)
	}
}

// LogTail returns the last lines of the log, indented by two spaces.
func (p *Process) LogTail() string {
	tail, err := readTail(p.LogPath)
	if err != nil {
		return fmt.Sprintf("  (log unreadable: %v)", err)
	}
	lines := strings.Split(strings.TrimRight(tail, "\n"), "\n")
	lines = lines[max(0, len(lines)-logTailLines):]
	return "  " + strings.Join(lines, "\n  ")
}

// readTail returns at most the last logTailBytes of a file.
func readTail(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("opening a log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("reading a log: %w", err)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-logTailBytes), logTailBytes))
	if err != nil {
		return "", fmt.Errorf("reading a log: %w", err)
	}
	return string(data), nil
}

// portTaken reports whether the process ended because another one holds its port.
func (p *Process) portTaken() bool {
	tail, err := readTail(p.LogPath)
	return err == nil && strings.Contains(tail, syscall.EADDRINUSE.Error())
}

// waitReady polls probe until it succeeds, the process ends, timeout has passed or ctx is done.
func (p *Process) waitReady(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready after %s", timeout))
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := probe(ctx)
		// An answer counts only while the process is there to give it.
		if dead := p.Err(); dead != nil {
			return dead
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %q: %w; last probe: %w; last lines of %s:\n%s",
				p.Name, context.Cause(ctx), err, p.LogPath, p.LogTail())
		}
	}
}

// joinStop stops a process after an error and adds what goes wrong with that.
func joinStop(err error, p *Process) error {
	return errors.Join(err, p.Stop())
}
