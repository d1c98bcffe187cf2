// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// wardenScript is what the warden runs, after the functions of cgroupScript.
//
//go:embed warden.sh
var wardenScript string

// cgroupScript makes cgroups of both versions.
//
//go:embed cgroup.sh
var cgroupScript string

// warden is the process that cleans up. It is not killed with the launcher.
type warden struct {
	cmd     *exec.Cmd
	holder  int // process id of the holder of the node's mount namespace
	answers *bufio.Reader

	mu    sync.Mutex
	input io.WriteCloser // its end is the end of the node; nil after that
}

// startWarden makes the node's cgroups and its mount namespace. dirs are removed at the end; the first one must exist.
func startWarden(dirs, cgroups []string) (*warden, error) {
	args := []string{"-c", cgroupScript + wardenScript, "topodra-node-warden"}
	args = append(append(append(args, dirs...), "--"), cgroups...)
	w := &warden{cmd: exec.Command("/bin/sh", args...)} //nolint:noctx // outlives every context by design
	w.cmd.Dir = "/"
	// A session of its own: neither Ctrl-C nor the end of the terminal reaches it.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the warden: %w", err)
	}
	output, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the warden: %w", err)
	}
	w.input, w.answers = input, bufio.NewReader(output)
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the warden: %w", err)
	}
	line, err := w.answers.ReadString('\n')
	pid, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if w.holder, _ = strconv.Atoi(pid); ok && err == nil && w.holder > 0 {
		return w, nil
	}
	return nil, errors.Join(fmt.Errorf("preparing cgroups and mounts: %s", strings.TrimSpace(line)), w.end())
}

// command sends a command, see warden.sh, and waits for its answer.
func (w *warden) command(words ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.input == nil {
		return os.ErrClosed
	}
	line := strings.Join(words, " ")
	if _, err := io.WriteString(w.input, line+"\n"); err != nil {
		return fmt.Errorf("telling the warden to %q: %w", line, err)
	}
	answer, err := w.answers.ReadString('\n')
	if answer = strings.TrimSpace(answer); err != nil || answer != "done" {
		return fmt.Errorf("telling the warden to %q: it answers %q: %w", line, answer, errors.Join(errNotClean, err))
	}
	return nil
}

// errNotClean is wrapped by errors about what the warden could not do.
var errNotClean = errors.New("not everything could be cleaned up")

// end has the warden clean up and waits for that. Further calls do nothing.
func (w *warden) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.input == nil {
		return nil
	}
	err := w.input.Close()
	w.input = nil
	said, readErr := io.ReadAll(w.answers)
	err = errors.Join(err, readErr, w.cmd.Wait())
	if text := strings.TrimSpace(string(said)); err != nil || text != "clean" {
		return errors.Join(fmt.Errorf("%w: the warden says %q", errNotClean, text), err)
	}
	return nil
}
