// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver"
	"github.com/topodra/topodra/driver/enforce/hamicore"
)

func main() {
	if code, isChild := hamicore.RunProbeChild(os.Stdout); isChild {
		os.Exit(code)
	}
	os.Exit(cli.Run(newCommand()))
}

// newCommand returns the command with all its flags.
func newCommand() *cobra.Command {
	opts := newOptions()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "topodra-driver",
		Short: "Publish the GPUs of this node and hand them to containers",
		Long: `The DRA driver gpu.topodra.dev of one node.

It finds the node's GPUs by NVML and sysfs, or in a recorded machine, publishes
them and the links between them as ResourceSlices, and prepares the claims of
pods: CDI specs, and limits for shares of GPUs. SIGHUP starts a discovery.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := setFromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			return logsapi.ValidateAndApply(logging, nil)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), opts)
		},
	}
	opts.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}

// run runs the driver until a signal ends it.
func run(ctx context.Context, opts *options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "topodra-driver"))

	config, err := opts.config()
	if err != nil {
		return err
	}
	config.Rescan = hangups(ctx)
	return driver.Run(ctx, *config)
}

// hangups delivers one item for one or more SIGHUPs until ctx ends.
func hangups(ctx context.Context) <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	out := make(chan struct{})
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
