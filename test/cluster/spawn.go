// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"time"
)

// ProcessOptions says what to run beside the control plane, for example on a node.
type ProcessOptions struct {
	// Name is for messages.
	Name string
	// Path is the program.
	Path string
	// Args are its arguments, without the program's name.
	Args []string
	// Dir is the working directory.
	Dir string
	// LogPath is the file that gets the standard output and standard error; it is created, or emptied if it exists.
	LogPath string
	// Grace is how long Stop waits between SIGTERM and SIGKILL.
	Grace time.Duration
}

// StartProcess starts a process that no cluster knows: the caller stops it. It dies with the calling process, as the
// processes of a cluster do.
func StartProcess(opts ProcessOptions) (*Process, error) {
	return spawn(processSpec{
		name: opts.Name, path: opts.Path, args: opts.Args, dir: opts.Dir, logPath: opts.LogPath, grace: opts.Grace,
	})
}

// WaitReady polls probe until it succeeds, the process ends, timeout has passed or ctx is done. What it returns then says
// which of these it was, and how the log ends.
func (p *Process) WaitReady(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	return p.waitReady(ctx, timeout, probe)
}
