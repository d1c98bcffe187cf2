// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/explain"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
)

func newExplainCommand(streams genericiooptions.IOStreams) *cobra.Command {
	config := genericclioptions.NewConfigFlags(true)
	output := outputText
	cmd := &cobra.Command{
		Use:   "explain pod NAME",
		Short: "Explain why a pod has the GPUs that it has, or what would have to be freed for it",
		Long: `Explain why a pod has the GPUs that it has, or what would have to be freed for it.

For a pod with GPUs: which ones, the links between them, and the bandwidth of the set against the best that was possible on the
node then, now, and if the node were empty. What was free then is reconstructed from the allocation times of claims that are
still there, which bounds it from above.

For a pending pod: the scheduler's words, why each node is refused, and the smallest set of claims of one node that would have to
be freed. Only what the API server has is looked at; the scheduler stays the authority.`,
		Example: `  # A pod of the current namespace
  kubectl topodra explain pod train-0

  # One of another, for a program
  kubectl topodra explain pod/train-0 -n ml -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			_, err := podName(args)
			return err
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args)
			if err != nil {
				return err
			}
			return runExplain(cmd.Context(), streams, config, name, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "output format: json or text")
	completeOutput(cmd)
	config.AddFlags(cmd.Flags())
	return cmd
}

// podName reads "pod NAME", "pods NAME", "po NAME" and "pod/NAME".
func podName(args []string) (string, error) {
	if len(args) == 1 {
		kind, name, found := strings.Cut(args[0], "/")
		if !found {
			return "", fmt.Errorf("explain what? Say \"pod %s\"", args[0])
		}
		args = []string{kind, name}
	}
	if len(args) != 2 {
		return "", fmt.Errorf("explain takes a kind and a name, such as \"pod train-0\"; there are %d arguments", len(args))
	}
	switch strings.ToLower(args[0]) {
	case "pod", "pods", "po":
	default:
		return "", fmt.Errorf("only pods can be explained, not %q", args[0])
	}
	if args[1] == "" {
		return "", fmt.Errorf("the name of the pod is empty")
	}
	return args[1], nil
}

func runExplain(ctx context.Context, streams genericiooptions.IOStreams, config *genericclioptions.ConfigFlags, name, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	namespace, _, err := config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return fmt.Errorf("finding the namespace: %w", err)
	}
	client, err := newClient(config)
	if err != nil {
		return err
	}
	planner, err := fit.New()
	if err != nil {
		return err
	}
	snapshot, err := explain.Read(ctx, client, namespace, name)
	if err != nil {
		return err
	}
	explanation, err := explain.Of(ctx, planner, snapshot)
	if err != nil {
		return err
	}
	if output == outputJSON {
		return explain.WriteJSON(streams.Out, explanation)
	}
	return explain.WriteText(streams.Out, explanation)
}
