// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/status"
)

// outputWide is text with more columns.
const outputWide = "wide"

// clearScreen moves the cursor home and removes what is there.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

func newStatusCommand(streams genericiooptions.IOStreams, live io.Writer) *cobra.Command {
	config := genericclioptions.NewConfigFlags(true)
	config.Namespace = nil // one table shows all namespaces
	output, watch := outputText, false
	cmd := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show idle, shared and held GPUs, who holds them, and what jobs could get now",
		Long: `Show idle, shared and held GPUs, who holds them, and what jobs could get now.

For each node, or for the named one: how many GPUs are idle, shared, taken entirely, or blocked by a taint, how many MIG devices are
held, and for jobs of 2, 4 and 8 whole GPUs the bandwidth of the best-linked set that is idle now, of that of the empty node: the
difference is what fragmentation costs. Then the claims with their pods and what they hold. -o wide adds every device.

-w keeps it current: on a terminal the picture is drawn again when it changes, elsewhere each new one follows the last, after an
empty line; with -o json there is one document per line. Ctrl-C ends it.`,
		Example: `  # All nodes
  kubectl topodra status

  # One node with its devices, kept current
  kubectl topodra status node-a -o wide -w`,
		Args:                  cobra.MaximumNArgs(1),
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nodeNames(cmd.Context(), config), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			node := ""
			if len(args) > 0 {
				node = args[0]
			}
			if watch {
				return watchStatus(cmd.Context(), streams, live, config, node, output)
			}
			return runStatus(cmd.Context(), streams, config, node, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "output format: json, text or wide")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep it current until interrupted")
	completeOutput(cmd, outputWide)
	config.AddFlags(cmd.Flags())
	return cmd
}

func runStatus(ctx context.Context, streams genericiooptions.IOStreams, config *genericclioptions.ConfigFlags, node, output string) error {
	if err := checkOutput(output, outputWide); err != nil {
		return err
	}
	client, err := newClient(config)
	if err != nil {
		return err
	}
	planner, err := fit.New()
	if err != nil {
		return err
	}
	report, err := status.Read(ctx, client, planner, node)
	if err != nil {
		return err
	}
	return drawStatus(streams.Out, report, output, false)
}

func drawStatus(w io.Writer, report *status.Report, output string, compact bool) error {
	if output == outputJSON {
		return status.WriteJSON(w, report, compact)
	}
	return status.WriteText(w, report, output == outputWide)
}

// watchStatus writes to live, past the buffer that holds the output of other commands back until they have succeeded.
func watchStatus(ctx context.Context, streams genericiooptions.IOStreams, live io.Writer, config *genericclioptions.ConfigFlags, node, output string) error {
	if err := checkOutput(output, outputWide); err != nil {
		return err
	}
	client, err := newClient(config)
	if err != nil {
		return err
	}
	planner, err := fit.New()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	before := ""
	if isTerminal(live) && output != outputJSON {
		before = clearScreen
	}
	shown := false
	return status.Watch(ctx, client, planner, status.View{
		Node: node,
		Draw: func(w io.Writer, report *status.Report) error { return drawStatus(w, report, output, true) },
		Show: func(text []byte) error {
			if shown && before == "" && output != outputJSON {
				text = append([]byte("\n"), text...)
			}
			shown = true
			_, err := live.Write(append([]byte(before), text...))
			return err
		},
		Warn: func(text string) { _ = warn(streams, text) }, // nobody is left to tell if that fails
	})
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
