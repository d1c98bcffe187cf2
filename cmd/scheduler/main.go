// SPDX-License-Identifier: Apache-2.0

// Command scheduler is topodra-scheduler: kube-scheduler with the plugins
// TopologyDynamicResources and TopologyScore compiled in. It takes the flags and
// the configuration file of kube-scheduler; see manifests/scheduler.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build information
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/topologydra"
	"github.com/topodra/topodra/plugins/topologyscore"
)

func main() {
	command := app.NewSchedulerCommand(
		app.WithPlugin(topologydra.Name, topologydra.New),
		app.WithPlugin(topologyscore.Name, topologyscore.New),
	)
	command.Use = api.SchedulerName
	os.Exit(cli.Run(command))
}
