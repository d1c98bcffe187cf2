// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/webhook"
)

// options are the values of the flags.
type options struct {
	kubeconfig      string
	bindAddress     string
	securePort      int
	metricsAddress  string
	probeAddress    string
	leaderElect     bool
	namespace       string
	serviceName     string
	secretName      string
	configurations  []string
	hosts           []string
	lifetime        time.Duration
	certPeriod      time.Duration
	templateGrace   time.Duration
	collectPeriod   time.Duration
	stragglerPeriod time.Duration
	qps             float32
	burst           int
	memorySizes     []int64 // by pflag's Int64Slice
	config          webhook.Config
	foreign         string
	privileged      string
	names           [5]string // resource names in the order of their flags
}

// newOptions returns the defaults.
func newOptions() *options {
	config := webhook.DefaultConfig()
	r := config.Vocabulary.Resources
	return &options{
		securePort: 9443, metricsAddress: ":8080", probeAddress: ":8081", leaderElect: true,
		namespace: "topodra-system", serviceName: "topodra-webhook", secretName: "topodra-webhook-tls", configurations: []string{"topodra-webhook"},
		lifetime: 90 * 24 * time.Hour, certPeriod: time.Minute,
		templateGrace: 10 * time.Minute, collectPeriod: time.Minute, stragglerPeriod: time.Minute,
		qps: 100, burst: 200,
		config: config, foreign: string(config.Foreign), privileged: string(config.Privileged),
		names: [5]string{string(r.GPU), string(r.Memory), string(r.MemoryPercent), string(r.Cores), string(r.Priority)},
	}
}

// addFlags declares the flags.
func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig file. Empty means the service account of the pod.")
	fs.StringVar(&o.bindAddress, "bind-address", o.bindAddress, "Address that the webhook listens on; empty is all.")
	fs.IntVar(&o.securePort, "secure-port", o.securePort, "Port of the webhook.")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, "Address of /metrics; 0 serves none.")
	fs.StringVar(&o.probeAddress, "health-probe-bind-address", o.probeAddress, "Address of /healthz and /readyz; 0 serves none.")
	fs.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "Let one of several replicas remove templates and tell of pods that came past the webhook. All of them admit pods.")
	fs.StringVar(&o.namespace, "namespace", o.namespace, "Namespace of this program: its Service, its Secret and its lease.")
	fs.StringVar(&o.serviceName, "service-name", o.serviceName, "Service through which the API server reaches the webhook.")
	fs.StringVar(&o.secretName, "secret-name", o.secretName, "Secret in which the certificates are kept. It is made if it is missing.")
	fs.StringSliceVar(&o.configurations, "webhook-configuration", o.configurations, "MutatingWebhookConfigurations that are told which authority to trust.")
	fs.StringSliceVar(&o.hosts, "tls-host", o.hosts, "Further DNS names or IP addresses for the certificate.")
	fs.DurationVar(&o.lifetime, "certificate-lifetime", o.lifetime, "How long a certificate lasts. It is renewed when a third is left.")
	fs.DurationVar(&o.certPeriod, "certificate-period", o.certPeriod, "Time between two looks at the certificates.")
	fs.DurationVar(&o.templateGrace, "template-grace", o.templateGrace, "How long a ResourceClaimTemplate stays after it was last given to a pod; at least two minutes but for tests.")
	fs.DurationVar(&o.collectPeriod, "collect-period", o.collectPeriod, "Time between two looks for templates without users.")
	fs.DurationVar(&o.stragglerPeriod, "straggler-period", o.stragglerPeriod, "Time between two looks for pods that came past the webhook.")
	fs.Float32Var(&o.qps, "kube-api-qps", o.qps, "Requests per second to the API server.")
	fs.IntVar(&o.burst, "kube-api-burst", o.burst, "Requests to the API server at once.")
	o.addConversionFlags(fs)
}

// addConversionFlags declares the flags for what becomes of pods.
func (o *options) addConversionFlags(fs *pflag.FlagSet) {
	c, v := &o.config, &o.config.Vocabulary
	fs.BoolVar(&c.Convert, "convert", c.Convert, "Turn classic requests into claims.")
	fs.StringVar(&c.SchedulerName, "scheduler-name", c.SchedulerName, "schedulerName of the scheduler that hands out our devices.")
	fs.StringSliceVar(&c.ReplacedSchedulers, "replaced-scheduler", c.ReplacedSchedulers, "schedulerNames that are replaced by --scheduler-name in pods that want our devices.")
	fs.StringVar(&o.foreign, "foreign-scheduler", o.foreign, "What becomes of pods that want our devices and name another scheduler: Reject, or Ignore, which leaves them as they are.")
	fs.StringVar(&o.privileged, "privileged", o.privileged, "What becomes of pods with classic requests and a privileged container: Reject or Allow.")
	fs.StringVar(&c.ClassGPU, "device-class-gpu", c.ClassGPU, "DeviceClass of GPUs for converted pods.")
	fs.StringVar(&c.ClassMIG, "device-class-mig", c.ClassMIG, "DeviceClass of MIG devices for converted pods.")
	fs.Int64SliceVar(&o.memorySizes, "memory-sizes", o.memorySizes, "Sizes in MiB of GPU memory, as the driver publishes it, that percentages reckon with besides those of nodes that are up.")
	fs.BoolVar(&c.ShareInitContainers, "share-init-containers", c.ShareInitContainers, "Let init containers use the shares of containers that start later. It needs a container runtime with NRI on the nodes.")
	for i, name := range []string{"gpu", "memory", "memory-percent", "cores", "priority"} {
		what := []string{"a number of GPUs", "memory per GPU", "memory per GPU in percent", "compute per GPU in percent", "a priority"}[i]
		fs.StringVar(&o.names[i], "resource-"+name, o.names[i], "Extended resource by which pods ask for "+what+".")
	}
	fs.Int64Var(&v.DefaultGPUs, "default-gpus", v.DefaultGPUs, "GPUs of a container that asks for an amount but for no number.")
	fs.Int64Var(&v.DefaultMemoryMiB, "default-memory-mib", v.DefaultMemoryMiB, "Memory per GPU of a container that asks for none; 0 is all.")
	fs.Int64Var(&v.DefaultCoresPercent, "default-cores-percent", v.DefaultCoresPercent, "Compute per GPU of a container that asks for none; 0 reserves and limits none.")
	fs.Int64Var(&v.MemoryFactorMiB, "memory-factor-mib", v.MemoryFactorMiB, "How many MiB one unit of --resource-memory is.")
}

// setFromEnvironment sets every flag that is not on the command line and has a variable that is set and not empty.
func setFromEnvironment(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(flag *pflag.Flag) {
		name := "TOPODRA_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if flag.Changed || !ok || value == "" {
			return
		}
		if err := fs.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("reading environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// complete moves the flags' values to where they belong and checks them.
func (o *options) complete() error {
	c := &o.config
	c.MemorySizesMiB, c.Foreign, c.Privileged = o.memorySizes, webhook.ForeignScheduler(o.foreign), webhook.Privileged(o.privileged)
	r := &c.Vocabulary.Resources
	for i, name := range []*corev1.ResourceName{&r.GPU, &r.Memory, &r.MemoryPercent, &r.Cores, &r.Priority} {
		*name = corev1.ResourceName(o.names[i])
	}
	if err := c.Validate().ToAggregate(); err != nil {
		return fmt.Errorf("checking the flags: %w", err)
	}
	for name, value := range map[string]time.Duration{
		"certificate-lifetime": o.lifetime, "certificate-period": o.certPeriod, "template-grace": o.templateGrace, "collect-period": o.collectPeriod, "straggler-period": o.stragglerPeriod,
	} {
		if value < time.Second {
			return fmt.Errorf("checking the flags: --%s is %s, it must be a second or more", name, value)
		}
	}
	if o.lifetime < 6*o.certPeriod {
		return fmt.Errorf("checking the flags: --certificate-lifetime is %s, it must be at least six times --certificate-period, which is %s", o.lifetime, o.certPeriod)
	}
	return nil
}

// certificateHosts are all names under which the API server may reach the webhook.
func (o *options) certificateHosts() []string {
	service := o.serviceName + "." + o.namespace
	return append([]string{service + ".svc", service, o.serviceName}, o.hosts...)
}

// client configures access to the API server.
func (o *options) client() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("configuring access to the API server: %w; outside of a pod, set --kubeconfig", err)
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	config.QPS, config.Burst = o.qps, o.burst
	return config, nil
}
