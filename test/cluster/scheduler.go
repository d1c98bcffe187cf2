// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// SchedulerOptions says which scheduler to start.
type SchedulerOptions struct {
	// Name names the process, its log and its files: a DNS label, not that of another running process. Default: Binary.
	// It has nothing to do with the schedulerName of pods: that is in the configuration.
	Name string
	// Binary is [TopoDRAScheduler] (the default), [StockScheduler], or a path with a slash to any other one.
	Binary string
	// ConfigYAML is a KubeSchedulerConfiguration, or empty for the defaults. Its clientConnection.kubeconfig and leaderElection.leaderElect
	// are overwritten; a rate limit for the client is set if it has none.
	ConfigYAML string
	// User is who the scheduler is; default: [UserStockScheduler] for the stock binary, else [UserTopoDRAScheduler].
	User string
	// ExtraArgs are further arguments, for example "-v=4".
	ExtraArgs []string
}

// StartScheduler starts a scheduler and returns when it is ready to schedule. Addr of the process serves /metrics, see
// [Process.Metrics].
func (c *Cluster) StartScheduler(ctx context.Context, opts SchedulerOptions) (*Process, error) {
	if opts.Binary == "" {
		opts.Binary = TopoDRAScheduler
	}
	if opts.Name == "" {
		opts.Name = opts.Binary
	}
	if opts.User == "" {
		opts.User = UserTopoDRAScheduler
		if opts.Binary == StockScheduler {
			opts.User = UserStockScheduler
		}
	}
	if err := checkName(opts.Name); err != nil {
		return nil, fmt.Errorf("starting a scheduler: %w", err)
	}
	kubeconfig, err := c.Kubeconfig(ctx, opts.User)
	if err != nil {
		return nil, fmt.Errorf("starting scheduler %q: %w", opts.Name, err)
	}
	config, err := schedulerConfig(opts.ConfigYAML, kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("starting scheduler %q: %w", opts.Name, err)
	}
	configFile := c.path(opts.Name + ".yaml")
	if err := os.WriteFile(configFile, config, 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration of scheduler %q: %w", opts.Name, err)
	}
	return c.startServer(ctx, serverSpec{
		stage: stageClients, name: opts.Name, binary: opts.Binary,
		args: func(port int) []string {
			args := append(c.componentArgs(opts.Name, port), "--config="+configFile)
			return append(args, opts.ExtraArgs...)
		},
		certFile: c.componentCert(opts.Name, StockScheduler), path: "/readyz", grace: schedulerGrace,
	})
}

// schedulerConfig puts what a process of this package needs into a scheduler configuration.
func schedulerConfig(configYAML, kubeconfig string) ([]byte, error) {
	config := map[string]any{}
	if err := yaml.Unmarshal([]byte(configYAML), &config); err != nil {
		return nil, fmt.Errorf("reading the scheduler configuration: %w", err)
	}
	if config == nil { // what the YAML document "null" makes of it
		config = map[string]any{}
	}
	setDefault(config, "apiVersion", "kubescheduler.config.k8s.io/v1")
	setDefault(config, "kind", "KubeSchedulerConfiguration")
	connection, err := section(config, "clientConnection")
	if err != nil {
		return nil, err
	}
	connection["kubeconfig"] = kubeconfig
	setDefault(connection, "qps", 500)
	setDefault(connection, "burst", 1000)
	election, err := section(config, "leaderElection")
	if err != nil {
		return nil, err
	}
	election["leaderElect"] = false
	data, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("writing the scheduler configuration: %w", err)
	}
	return data, nil
}

// section returns the object under key, which it makes if there is none.
func section(config map[string]any, key string) (map[string]any, error) {
	setDefault(config, key, map[string]any{})
	object, ok := config[key].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("reading the scheduler configuration: %q is not an object", key)
	}
	return object, nil
}

func setDefault(object map[string]any, key string, value any) {
	if object[key] == nil {
		object[key] = value
	}
}

// checkName refuses what cannot be part of a file name or a node name.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", name, strings.Join(problems, "; "))
	}
	return nil
}
