// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/enforce/hamicore"
	"github.com/topodra/topodra/driver/enforce/nvmllimit"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/nri"
	"github.com/topodra/topodra/driver/nvml"
	"github.com/topodra/topodra/driver/nvml/memlimit"
	"github.com/topodra/topodra/driver/nvml/nvcdi"
	"github.com/topodra/topodra/driver/nvml/probe"
	"github.com/topodra/topodra/driver/nvml/usage"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/driver/recorded"
)

// options are the values of the flags.
type options struct {
	kubeconfig, nodeName             string
	machine, sysfsRoot, driverRoot   string
	pluginRegistryDir, pluginDataDir string
	rescanPeriod                     time.Duration
	requireCores                     bool
	minMemory, memoryReserve         resource.QuantityValue
	maxSharers                       int
	httpAddress                      string
	hamiMetricAliases                bool

	stateDir, cdiDir             string
	hostRoot, hostDriverRoot     string
	cdiHook, hamiCore, nriSocket string
	podUID                       string
	reconcilePeriod              time.Duration
	onViolation, enforcement     string
	cgroupRoot                   string

	healthPeriod    time.Duration
	cleanLooks      int
	taintEffects    map[string]string
	ignoredXIDs     []uint
	otherAllocators []string
}

// newOptions returns the defaults.
func newOptions() *options {
	return &options{
		sysfsRoot:         "/sys",
		driverRoot:        "/",
		pluginRegistryDir: kubeletplugin.KubeletRegistryDir,
		pluginDataDir:     filepath.Join(kubeletplugin.KubeletPluginsDir, api.DriverName),
		rescanPeriod:      time.Minute,
		cdiDir:            "/var/run/cdi",
		hostRoot:          "/",
		hostDriverRoot:    "/",
		cdiHook:           "/usr/bin/nvidia-cdi-hook",
		nriSocket:         nri.DefaultSocketPath,
		reconcilePeriod:   driver.DefaultReconcilePeriod,
		onViolation:       string(driver.OnViolationTell),
		httpAddress:       driver.DefaultHTTPAddress,
		enforcement:       hamicore.Name,
		cgroupRoot:        "/sys/fs/cgroup",
		healthPeriod:      health.DefaultPeriod,
		cleanLooks:        health.DefaultCleanLooks,
		ignoredXIDs:       defaultIgnoredXIDs(),
		otherAllocators:   driver.DefaultOtherAllocators,
	}
}

// addFlags declares the flags.
func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig file. Empty means the service account of the pod.")
	fs.StringVar(&o.nodeName, "node-name", o.nodeName, "Name of the Node object of this node.")
	fs.StringVar(&o.machine, "machine", o.machine, "Publish the recorded machine in this file instead of this node's GPUs: JSON, or the text of nvidia-smi topo -m.")
	fs.StringVar(&o.sysfsRoot, "sysfs-root", o.sysfsRoot, "Where sysfs is mounted.")
	fs.StringVar(&o.driverRoot, "driver-root", o.driverRoot, "Root of the file system that holds NVIDIA's driver, whose libnvidia-ml.so.1 is used.")
	fs.StringVar(&o.pluginRegistryDir, "plugin-registry-dir", o.pluginRegistryDir, "Directory in which the kubelet looks for registration sockets.")
	fs.StringVar(&o.pluginDataDir, "plugin-data-dir", o.pluginDataDir, "Directory for this driver's own socket.")
	fs.DurationVar(&o.rescanPeriod, "rescan-period", o.rescanPeriod, "Time between two discoveries; 0 means only at the start and on SIGHUP.")
	fs.BoolVar(&o.requireCores, "require-cores", o.requireCores, "Give every claim at least 1% of compute, and all of it unless it says otherwise.")
	fs.Var(&o.minMemory, "min-memory", "Least memory that a claim takes of a GPU, such as 1Gi.")
	fs.IntVar(&o.maxSharers, "max-sharers", o.maxSharers, "How many claims may share a GPU; 0 is no limit.")
	fs.Var(&o.memoryReserve, "memory-reserve", "Memory that is kept free on every GPU, such as 512Mi.")
	o.addClaimFlags(fs)
	o.addHealthFlags(fs)
	fs.StringVar(&o.httpAddress, "http-address", o.httpAddress, "Address for /healthz, /readyz and /metrics; empty serves nothing.")
	fs.BoolVar(&o.hamiMetricAliases, "hami-metric-aliases", o.hamiMetricAliases, "Tell metrics by the names that HAMi has for them, too, so that dashboards made for it keep working.")
}

// addClaimFlags declares the flags for the preparation of claims.
func (o *options) addClaimFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.stateDir, "state-dir", o.stateDir, "Directory for what the driver remembers and what containers mount from it; the same path on the host. Empty means --plugin-data-dir.")
	fs.StringVar(&o.cdiDir, "cdi-dir", o.cdiDir, "Directory in which the container runtime looks for CDI specs.")
	fs.StringVar(&o.hostRoot, "host-root", o.hostRoot, "Where the root of the host's file system is mounted, to look for what CDI specs refer to.")
	fs.StringVar(&o.hostDriverRoot, "host-driver-root", o.hostDriverRoot, "The directory on the host that is mounted at --driver-root.")
	fs.StringVar(&o.cdiHook, "nvidia-cdi-hook", o.cdiHook, "Path of nvidia-cdi-hook on the host, which CDI specs of real GPUs run.")
	fs.StringVar(&o.hamiCore, "hami-core-library", o.hamiCore, "HAMi-core's libvgpu.so, which limits containers with shares of GPUs. Empty refuses shares.")
	fs.StringVar(&o.nriSocket, "nri-socket", o.nriSocket, "Socket at which the container runtime offers NRI. Empty does without, and refuses what only NRI can express.")
	fs.StringVar(&o.podUID, "pod-uid", o.podUID, "UID of the driver's own pod, so that the next version can run beside it during an update. Empty does without.")
	fs.StringVar(&o.enforcement, "enforcement", o.enforcement, "What limits containers with shares of GPUs: hami-core, or nvml-memory-limit for the GPU driver's own limit of memory.")
	fs.StringVar(&o.cgroupRoot, "cgroup-root", o.cgroupRoot, "Where cgroups are mounted, for --enforcement=nvml-memory-limit.")
	fs.StringVar(&o.onViolation, "on-violation", o.onViolation, "What to do about containers that use more memory of a GPU than they have, by NVML's count: Tell (event and metric), Evict, or Taint (keeps new work away from the GPU until it is over).")
	fs.DurationVar(&o.reconcilePeriod, "reconcile-period", o.reconcilePeriod, "Time between two comparisons of what claims have left on the node with what should be there.")
}

// addHealthFlags declares the flags for the health of GPUs.
func (o *options) addHealthFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.healthPeriod, "health-period", o.healthPeriod, "Time between two looks at the health of GPUs; 0 does not look, and reports no health. Every second time, the node is asked for --other-allocators.")
	fs.IntVar(&o.cleanLooks, "health-clean-looks", o.cleanLooks, "How many looks in a row must find nothing before the taint of a GPU goes.")
	fs.StringToStringVar(&o.taintEffects, "taint-effects", o.taintEffects, "Effects of taints by severity (fatal, degraded, info) or kind (xid, lost, ...), such as fatal=NoExecute,nvlink=NoSchedule. Effects are NoSchedule (default), NoExecute and None (default for info).")
	fs.UintSliceVar(&o.ignoredXIDs, "ignored-xids", o.ignoredXIDs, "XID errors of the kernel driver that say nothing about the GPU; the default are those that NVIDIA puts down to applications.")
	fs.StringSliceVar(&o.otherAllocators, "other-allocators", o.otherAllocators, "Extended resources by which somebody else hands out the same GPUs; a name may end with *. While the node offers one, all GPUs have a taint.")
}

// defaultIgnoredXIDs in the type of the flag.
func defaultIgnoredXIDs() []uint {
	var out []uint
	for _, xid := range health.DefaultIgnoredXIDs {
		out = append(out, uint(xid))
	}
	return out
}

// environmentNames returns the variables that can set a flag, the first wins.
func environmentNames(flag string) []string {
	names := []string{"TOPODRA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
	switch flag {
	case "node-name":
		names = append(names, "NODE_NAME")
	case "pod-uid":
		names = append(names, "POD_UID")
	}
	return names
}

// setFromEnvironment sets every flag that is not on the command line and has a
// variable that is set and not empty.
func setFromEnvironment(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			return
		}
		for _, name := range environmentNames(flag.Name) {
			value, ok := lookup(name)
			if !ok || value == "" {
				continue
			}
			if err := fs.Set(flag.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("reading environment variable %s: %w", name, err))
			}
			return
		}
	})
	return errors.Join(errs...)
}

// config turns the flags into what the driver needs.
func (o *options) config() (*driver.Config, error) {
	if o.nodeName == "" {
		return nil, errors.New("the node's name is missing: set --node-name or NODE_NAME")
	}
	registry, err := filepath.Abs(o.pluginRegistryDir)
	if err != nil {
		return nil, fmt.Errorf("resolving --plugin-registry-dir: %w", err)
	}
	data, err := filepath.Abs(o.pluginDataDir)
	if err != nil {
		return nil, fmt.Errorf("resolving --plugin-data-dir: %w", err)
	}
	minMemory, err := bytesOf("--min-memory", &o.minMemory.Quantity)
	if err != nil {
		return nil, err
	}
	reserve, err := bytesOf("--memory-reserve", &o.memoryReserve.Quantity)
	if err != nil {
		return nil, err
	}
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	source, err := o.source()
	if err != nil {
		return nil, err
	}
	claims, err := o.claims(data)
	if err != nil {
		return nil, err
	}
	healthConfig, err := o.health(claims.StateDir)
	if err != nil {
		return nil, err
	}
	config := &driver.Config{
		Claims: claims,
		Health: healthConfig,
		Client: client,
		Source: source,
		Publish: publish.Options{
			NodeName: o.nodeName, RequireCores: o.requireCores, MinMemory: minMemory,
			MaxSharers: o.maxSharers, MemoryReserve: reserve,
		},
		RegistryDir:  registry,
		DataDir:      data,
		RescanPeriod: o.rescanPeriod,
		HTTPAddress:  o.httpAddress,

		HAMiMetricAliases: o.hamiMetricAliases,
	}
	return config, config.Validate()
}

// claims turns the flags into what claims need. dataDir is --plugin-data-dir.
func (o *options) claims(dataDir string) (*driver.ClaimsConfig, error) {
	stateDir := dataDir
	if o.stateDir != "" {
		var err error
		if stateDir, err = filepath.Abs(o.stateDir); err != nil {
			return nil, fmt.Errorf("resolving --state-dir: %w", err)
		}
	}
	cdiDir, err := filepath.Abs(o.cdiDir)
	if err != nil {
		return nil, fmt.Errorf("resolving --cdi-dir: %w", err)
	}
	out := &driver.ClaimsConfig{
		StateDir: stateDir, CDIDir: cdiDir, NRISocket: o.nriSocket, PodUID: types.UID(o.podUID), ReconcilePeriod: o.reconcilePeriod,
		Base: cdi.Simulated{}, OnViolation: driver.OnViolation(o.onViolation),
	}
	if filepath.Clean(o.hostRoot) != "/" {
		// What has the same path on both sides is looked for where it is.
		out.Paths = cdi.PathMap{{Host: "/", Local: o.hostRoot}, {Host: stateDir, Local: stateDir}, {Host: cdiDir, Local: cdiDir}}
	}
	if o.machine == "" {
		if out.Base, err = o.base(); err != nil {
			return nil, err
		}
		out.Processes = usage.New(nvml.Library(o.driverRoot))
	}
	out.Enforcer, err = o.enforcer(stateDir)
	return out, err
}

// health turns the flags into what is needed to watch GPUs.
func (o *options) health(stateDir string) (*driver.HealthConfig, error) {
	out := &driver.HealthConfig{StateDir: stateDir, Period: o.healthPeriod, CleanLooks: o.cleanLooks, OtherAllocators: o.otherAllocators, OtherAllocatorPeriod: 2 * o.healthPeriod,
		Policy: health.Policy{IgnoredXIDs: []uint64{}}}
	for _, xid := range o.ignoredXIDs {
		out.Policy.IgnoredXIDs = append(out.Policy.IgnoredXIDs, uint64(xid))
	}
	if err := out.Policy.SetEffects(o.taintEffects); err != nil {
		return nil, fmt.Errorf("--taint-effects: %w", err)
	}
	switch {
	case o.healthPeriod == 0:
	case o.machine != "":
		out.Prober = recorded.NewProber(o.machine, o.nodeName)
	default:
		out.Prober = probe.New(nvml.Library(o.driverRoot))
	}
	return out, nil
}

// enforcer chooses what limits shares; nil is nothing.
func (o *options) enforcer(stateDir string) (enforce.Enforcer, error) {
	switch o.enforcement {
	case hamicore.Name:
		if o.hamiCore == "" {
			return nil, nil
		}
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program to probe preloading with: %w", err)
		}
		enforcer, err := hamicore.New(hamicore.Options{Source: o.hamiCore, Root: filepath.Join(stateDir, "hami-core"), Probe: hamicore.Probe(program)})
		if err != nil {
			return nil, err
		}
		return enforcer, nil
	case nvmllimit.Name:
		if o.machine != "" {
			return nil, fmt.Errorf("--enforcement=%s needs real GPUs, but --machine is set", nvmllimit.Name)
		}
		return nvmllimit.New(memlimit.New(nvml.Library(o.driverRoot)), o.cgroupRoot), nil
	default:
		return nil, fmt.Errorf("--enforcement is %q, known are %q and %q", o.enforcement, hamicore.Name, nvmllimit.Name)
	}
}

// base finds out what containers need for real GPUs.
func (o *options) base() (cdi.Base, error) {
	options, err := o.baseOptions()
	if err != nil {
		return nil, err
	}
	return nvcdi.New(options)
}

// baseOptions say where NVIDIA's driver and its hook are.
func (o *options) baseOptions() (nvcdi.Options, error) {
	root, err := filepath.Abs(o.driverRoot)
	if err != nil {
		return nvcdi.Options{}, fmt.Errorf("resolving --driver-root: %w", err)
	}
	return nvcdi.Options{Library: nvml.Library(o.driverRoot), DriverRoot: root, HostDriverRoot: o.hostDriverRoot, HookPath: o.cdiHook}, nil
}

// bytesOf reads an amount of memory; fractions of a byte are rounded up.
func bytesOf(flag string, quantity *resource.Quantity) (device.Bytes, error) {
	if quantity.Sign() < 0 {
		return 0, fmt.Errorf("%s is %s, it must not be negative", flag, quantity.String())
	}
	if quantity.CmpInt64(maxMemory) > 0 {
		return 0, fmt.Errorf("%s is %s, more than any GPU has", flag, quantity.String())
	}
	return device.Bytes(quantity.Value()), nil
}

// maxMemory is 1Pi, which keeps sums far from overflow.
const maxMemory = 1 << 50

// client connects to the API server.
func (o *options) client() (kubernetes.Interface, error) {
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("configuring access to the API server: %w", err)
	}
	return client, nil
}

// source chooses where devices come from.
func (o *options) source() (device.Source, error) {
	if o.machine == "" {
		return nvml.New(o.driverRoot, o.sysfsRoot)
	}
	return recorded.New(o.machine, o.nodeName), nil
}
