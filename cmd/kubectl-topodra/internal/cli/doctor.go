// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/doctor"
)

func newDoctorCommand(streams genericiooptions.IOStreams) *cobra.Command {
	config := genericclioptions.NewConfigFlags(true)
	output := outputText
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at a cluster for what keeps TopoDRA from working or from being safe",
		Long: `Look at a cluster for what keeps TopoDRA from working or from being safe.

Each finding says what is wrong, why it matters and the command that mends it. Nothing is changed: which fields the API server drops
is found out by dry runs, in the current namespace and without a trace. What the rights of the user do not allow to look at is
reported as not checked.

Exit status: 0 when nothing is wrong, 1 when there are warnings, 2 when there are errors or the cluster cannot be looked at. Checks
that could not be made change nothing.`,
		Example: `  kubectl topodra doctor

  # In a script: stop at errors, go on at warnings
  kubectl topodra doctor -o json > report.json || [ $? -eq 1 ]`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return failure{fmt.Errorf("doctor takes no arguments, but there is %q", args[0]), doctor.ExitErrors}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := runDoctor(cmd.Context(), streams, config, output)
			switch {
			case err != nil:
				return failure{err, doctor.ExitErrors}
			case status != doctor.ExitFine:
				return exitStatus(status)
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return failure{fmt.Errorf("%w\nSee \"%s --help\"", flagError(err), cmd.CommandPath()), doctor.ExitErrors}
	})
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "output format: json or text")
	completeOutput(cmd)
	config.AddFlags(cmd.Flags())
	return cmd
}

func runDoctor(ctx context.Context, streams genericiooptions.IOStreams, config *genericclioptions.ConfigFlags, output string) (int, error) {
	if err := checkOutput(output); err != nil {
		return 0, err
	}
	namespace, _, err := config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return 0, fmt.Errorf("finding the namespace: %w", err)
	}
	rest, err := config.ToRESTConfig()
	if err != nil {
		return 0, fmt.Errorf("finding the cluster: %w", err)
	}
	snapshot, err := doctor.Gather(ctx, rest, namespace)
	if err != nil {
		return 0, err
	}
	report := doctor.Examine(snapshot)
	if output == outputJSON {
		return report.Exit(), doctor.WriteJSON(streams.Out, report)
	}
	return report.Exit(), doctor.WriteText(streams.Out, report)
}
