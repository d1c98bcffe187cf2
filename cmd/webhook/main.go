// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/topodra/topodra/webhook"
	"github.com/topodra/topodra/webhook/certs"
	"github.com/topodra/topodra/webhook/inventory"
	"github.com/topodra/topodra/webhook/templates"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

// newCommand returns the command with all its flags.
func newCommand() *cobra.Command {
	opts := newOptions()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "topodra-webhook",
		Short: "Turn classic GPU requests into claims, and send pods with claims to topodra-scheduler",
		Long: `The admission webhook of TopoDRA.

It converts new pods that ask for GPUs by nvidia.com/gpu, nvidia.com/gpumem and
their like, and sets the scheduler of pods that have claims for our devices. It
keeps its certificates itself.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := setFromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			return logsapi.ValidateAndApply(logging, nil)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts) },
	}
	opts.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}

// run runs the webhook until a signal ends it.
func run(ctx context.Context, opts *options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logger := klog.LoggerWithName(klog.FromContext(ctx), "topodra-webhook")
	ctx = klog.NewContext(ctx, logger)
	ctrllog.SetLogger(logger)
	if err := opts.complete(); err != nil {
		return err
	}
	config, err := opts.client()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("configuring access to the API server: %w", err)
	}
	keeper := &certs.Keeper{
		Client: client, Namespace: opts.namespace, Secret: opts.secretName, Configurations: opts.configurations,
		Terms: certs.Terms{Hosts: opts.certificateHosts(), Lifetime: opts.lifetime}, Period: opts.certPeriod,
	}
	stock, err := inventory.New(client, opts.config.ClassGPU, opts.config.ClassMIG)
	if err != nil {
		return err
	}
	mgr, err := newManager(opts, config, client, keeper, stock)
	if err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

// newManager joins the parts.
func newManager(opts *options, config *rest.Config, client kubernetes.Interface, keeper *certs.Keeper, stock *inventory.Inventory) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: opts.bindAddress, Port: opts.securePort,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion, c.GetCertificate = tls.VersionTLS13, keeper.GetCertificate
		}},
	})
	mgr, err := manager.New(config, manager.Options{
		Scheme: scheme, WebhookServer: server,
		Metrics: metricsserver.Options{BindAddress: opts.metricsAddress}, HealthProbeBindAddress: opts.probeAddress,
		LeaderElection: opts.leaderElect, LeaderElectionID: "topodra-webhook", LeaderElectionNamespace: opts.namespace, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing: %w", err)
	}
	counts := newCounts(keeper)
	mgr.GetWebhookServer().Register(webhook.Path, &admission.Webhook{Handler: &webhook.Handler{
		Config: opts.config, Client: client, Inventory: stock, Count: counts.pod,
		Templates: &templates.Store{Client: client, Grace: opts.templateGrace},
	}})
	runnables := []manager.Runnable{
		keeper, stock,
		&templates.Collector{Client: client, Grace: opts.templateGrace, Period: opts.collectPeriod, Removed: counts.removed},
		&webhook.Straggler{Config: &opts.config, Client: client, Events: mgr.GetEventRecorder("topodra-webhook"), Period: opts.stragglerPeriod},
	}
	var errs []error
	for _, runnable := range runnables {
		errs = append(errs, mgr.Add(runnable))
	}
	// Ready is what can answer; alive is what can still do something about it.
	errs = append(errs,
		mgr.AddReadyzCheck("certificate", func(*http.Request) error { return keeper.Ready() }),
		mgr.AddReadyzCheck("inventory", func(*http.Request) error { return stock.Ready() }),
		mgr.AddReadyzCheck("server", mgr.GetWebhookServer().StartedChecker()),
		mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }),
	)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("preparing: %w", err)
	}
	return mgr, nil
}
