// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
)

func newTopologyCommand(streams genericiooptions.IOStreams) *cobra.Command {
	config := genericclioptions.NewConfigFlags(true)
	// One table shows all namespaces; the flag would promise something else.
	config.Namespace = nil
	output := outputText
	cmd := &cobra.Command{
		Use:   "topology [NODE]",
		Short: "Show how the GPUs of live nodes are linked and who holds them",
		Long: `Show how the GPUs of live nodes are linked and who holds them.

For each node, or for the named one: the link matrix as nvidia-smi topo -m prints it, then for each GPU what is used of its memory
and compute and which pods hold it through which claims. Nodes whose GPUs exist only in a recorded machine are marked as
simulated. Only ResourceSlices, ResourceClaims, pods and nodes are read.`,
		Example: `  # All nodes
  kubectl topodra topology

  # One node, for a program
  kubectl topodra topology node-a -o json`,
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
			return runTopology(cmd.Context(), streams, config, node, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "output format: json or text")
	completeOutput(cmd)
	config.AddFlags(cmd.Flags())
	return cmd
}

func runTopology(ctx context.Context, streams genericiooptions.IOStreams, config *genericclioptions.ConfigFlags, node, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	client, err := newClient(config)
	if err != nil {
		return err
	}
	view, err := nodes.Read(ctx, client, node)
	if err != nil {
		return err
	}
	for _, w := range view.Warnings {
		if _, err := fmt.Fprintf(streams.ErrOut, "warning: %s\n", w); err != nil {
			return fmt.Errorf("writing a warning: %w", err)
		}
	}
	if output == outputJSON {
		return nodes.WriteJSON(streams.Out, view)
	}
	return nodes.WriteText(streams.Out, view)
}

func newClient(config *genericclioptions.ConfigFlags) (kubernetes.Interface, error) {
	rest, err := config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}

// nodeNames returns the names of nodes with GPUs for the shell's completion; none when they cannot be read.
func nodeNames(ctx context.Context, config *genericclioptions.ConfigFlags) []string {
	client, err := newClient(config)
	if err != nil {
		return nil
	}
	view, err := nodes.Read(ctx, client, "")
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(view.Nodes))
	for _, n := range view.Nodes {
		names = append(names, n.Name)
	}
	return names
}
