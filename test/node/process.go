// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/topodra/topodra/test/cluster"
)

// enterScript moves itself into the cgroups whose count and process lists come first, then turns into the program.
const enterScript = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 125; shift; n=$((n-1)); done; exec "$@"`

// ProcessOptions says what to run on a node.
type ProcessOptions struct {
	// Name names the process and its log file; a name that was used before gets a number there.
	Name string
	// Path is the program; Args are its arguments, without its name.
	Path string
	Args []string
	// Env is added to the launcher's environment, as NAME=VALUE.
	Env []string
	// Grace is how long Stop waits between SIGTERM and SIGKILL; default 10 s.
	Grace time.Duration
}

// Run starts a program in the node's cgroup and mount namespace, where it sees the same mounts as the kubelet and
// containerd. The caller stops it; it also ends with the node and with the launcher.
func (n *Node) Run(opts ProcessOptions) (*cluster.Process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return nil, fmt.Errorf("starting %q on node %q: %w", opts.Name, n.opts.Name, errStopping)
	}
	n.names[opts.Name]++
	logName := opts.Name + ".log"
	if count := n.names[opts.Name]; count > 1 {
		logName = fmt.Sprintf("%s-%d.log", opts.Name, count)
	}
	p, err := cluster.StartProcess(cluster.ProcessOptions{
		Name: opts.Name, Path: "/bin/sh", Args: n.enterArgs(opts), Dir: "/", LogPath: filepath.Join(n.opts.LogDir, logName),
		Grace: cmp.Or(opts.Grace, 10*time.Second),
	})
	if err != nil {
		return nil, fmt.Errorf("starting %q on node %q: %w", opts.Name, n.opts.Name, err)
	}
	n.processes = append(n.processes, p)
	return p, nil
}

// enterArgs returns the arguments for /bin/sh with which it becomes a program on the node.
func (n *Node) enterArgs(opts ProcessOptions) []string {
	groups := cgroupPaths(n.cgroupMounts, n.cgroup, systemCgroup, "cgroup.procs")
	args := append([]string{"-c", enterScript, "enter", strconv.Itoa(len(groups))}, groups...)
	args = append(args, "env", "TMPDIR="+n.path("tmp"))
	args = append(args, opts.Env...)
	args = append(args, "nsenter", "--mount="+n.mountNamespace(), "--wd="+n.dir, "--", opts.Path)
	return append(args, opts.Args...)
}

// Command runs a program to its end, as [Node.Run] starts it, and returns what it wrote.
func (n *Node) Command(ctx context.Context, path string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "/bin/sh", n.enterArgs(ProcessOptions{Path: path, Args: args})...)
	command.WaitDelay = 10 * time.Second // for what the program may leave behind with its output open
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %q on node %q: %w: %s", append([]string{path}, args...), n.opts.Name, err, bytes.TrimSpace(output))
	}
	return string(output), nil
}

// mountNamespace returns the file that names the node's mount namespace.
func (n *Node) mountNamespace() string {
	return fmt.Sprintf("/proc/%d/ns/mnt", n.warden.holder)
}
