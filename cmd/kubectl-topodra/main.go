// SPDX-License-Identifier: Apache-2.0

// Command kubectl-topodra is a kubectl plugin: put it on the PATH and call it as "kubectl topodra". It shows how the GPUs of
// a cluster are linked and who holds them, and plans offline which GPUs a job would get.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/cli"
)

func main() {
	os.Exit(run())
}

// run exists so that deferred calls happen before the process exits.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Main(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
}
