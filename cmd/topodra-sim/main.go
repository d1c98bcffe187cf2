// SPDX-License-Identifier: Apache-2.0

// Command topodra-sim lets jobs pass through a described cluster in virtual time, under TopoDRA's placement and under
// published policies of other schedulers, and compares what the jobs get.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run runs the command line and returns the exit status: 0, or 1 after an error.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := &cobra.Command{
		Use:   "topodra-sim",
		Short: "Simulate GPU placement policies",
		Long: `Simulate GPU placement policies in virtual time.

"study" does the simulations of docs/results.md. "run" does one of your own: a cluster, jobs from a CSV file or
generated ones, some policies. "policies" says what there is to compare.`,
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetArgs(args)
	root.AddCommand(newStudyCommand(), newRunCommand(), newPoliciesCommand()) //nolint:contextcheck // commands take it from ExecuteContext
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintf(errOut, "error: %v\n", err) // nobody is left to tell if that fails
		return 1
	}
	return 0
}
