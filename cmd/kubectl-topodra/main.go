// SPDX-License-Identifier: Apache-2.0

// Command kubectl-topodra is a kubectl plugin: put it on the PATH and call it as "kubectl topodra". It shows how the GPUs of
// a cluster are linked and who holds them, and plans offline which GPUs a job would get.
package main

import (
	"context"
	"os"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/cli"
)

func main() {
	os.Exit(run())
}

// run installs no signal handler: nothing is written before a command is done and there is nothing to clean up, so a signal may end the
// program at once, wherever it waits or computes.
func run() int {
	return cli.Main(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr)
}
