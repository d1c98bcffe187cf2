// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
)

// version is set by the linker; without it the version comes from the build information.
var version = ""

// completionName is the name under which kubectl looks for the program that completes this plugin's arguments. A link of
// that name to the plugin is enough.
const completionName = "kubectl_complete-topodra"

// exitStatus is the error of a command that is done but tells its result by the exit status, too. What it wrote is shown.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// failure is an error with an exit status of its own.
type failure struct {
	error
	status int
}

func (f failure) Unwrap() error { return f.error }

// Main runs the command line and returns the exit status: 0, or 1 after any error, unless the command has its own.
func Main(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	// Output is held back until the command has succeeded, so that a failure leaves nothing on the standard output.
	var held bytes.Buffer
	root := newCommand(genericiooptions.IOStreams{In: in, Out: &held, ErrOut: errOut}, out) //nolint:contextcheck // commands take it from ExecuteContext
	rest := args[1:]
	if filepath.Base(args[0]) == completionName {
		rest = append([]string{cobra.ShellCompRequestCmd}, rest...)
	}
	root.SetArgs(rest)
	status := 0
	if err := root.ExecuteContext(ctx); err != nil {
		var done exitStatus
		if !errors.As(err, &done) {
			_, _ = fmt.Fprintf(errOut, "error: %s\n", printable.Lines(err.Error())) // nobody is left to tell if that fails
			return statusOf(err)
		}
		status = int(done)
	}
	if _, err := out.Write(held.Bytes()); err != nil {
		_, _ = fmt.Fprintf(errOut, "error: writing the result: %v\n", err)
		return 1
	}
	return status
}

func statusOf(err error) int {
	if f, ok := errors.AsType[failure](err); ok {
		return f.status
	}
	return 1
}

// newCommand returns the command tree. Commands that never end by themselves write to live.
func newCommand(streams genericiooptions.IOStreams, live io.Writer) *cobra.Command {
	root := &cobra.Command{
		// The file is called kubectl-topodra; people call it through kubectl.
		Use:         "kubectl-topodra",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl topodra"},
		Short:       "See how GPUs are linked and which ones a job would get",
		Long: `See how GPUs are linked and which ones a job would get.

"topology" shows the link matrix of the nodes of a cluster with who holds which GPU.
"status" sums up what is idle, who holds the rest, and what jobs could get now.
"explain" says why a pod has the GPUs that it has, or what would have to be freed for it.
"doctor" looks for what keeps TopoDRA from working or from being safe.
"plan" needs no cluster: it reads a recorded machine or the output of nvidia-smi topo -m.`,
		Example: `  # The best 4 of the GPUs 0,1,3,4,6,7 of this machine
  nvidia-smi topo -m | kubectl topodra plan --machine - --gpus 4 --free 0,1,3,4,6,7

  # How the GPUs of a node are linked and who holds them
  kubectl topodra topology node-a

  # What is free, kept current
  kubectl topodra status -w`,
		Version:           buildVersion(),
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("kubectl topodra {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee \"%s --help\"", flagError(err), cmd.CommandPath())
	})
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.AddCommand(newTopologyCommand(streams), newPlanCommand(streams), newStatusCommand(streams, live), newExplainCommand(streams), newDoctorCommand(streams))
	return root
}

// flagError says what a flag takes instead of what the parser of numbers says.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	takes := map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false"}
	what, ok := takes[invalid.GetFlag().Value.Type()]
	if !ok {
		return err
	}
	return fmt.Errorf("--%s must be %s, not %q", invalid.GetFlag().Name, what, invalid.GetValue())
}

// buildVersion returns what the linker set, else what the Go toolchain recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text, dirty := info.Main.Version, ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && (text == "" || text == "(devel)"):
			text = "devel-" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " (modified)"
		}
	}
	if text == "" {
		text = "devel"
	}
	return text + dirty
}
