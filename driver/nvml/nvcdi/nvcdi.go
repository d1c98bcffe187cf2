// SPDX-License-Identifier: Apache-2.0

// Package nvcdi asks nvidia-container-toolkit what containers need in order to
// use real GPUs: device nodes, libraries and hooks. It implements cdi.Base.
//
// Nothing is remembered between calls. On a node that has just booted, device
// files appear one after the other, and an answer of then would be wrong for as
// long as it is kept.
//
// The toolkit's hook that sets CUDA memory limits from a pod's environment is
// left out always: limits come from claims.
//
// Concurrency: safe for concurrent use; calls are made one at a time. Allowed
// imports: the standard library, driver/cdi, go-nvml, nvidia-container-toolkit,
// the CDI module, klog.
package nvcdi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/cdi"
)

// Options of a Base.
type Options struct {
	// Library is NVML. It need not be initialised.
	Library nvml.Interface

	// DriverRoot is the root of the file system with NVIDIA's driver, as this
	// process sees it; HostDriverRoot is the same on the host.
	DriverRoot, HostDriverRoot string

	// DevRoot is the directory that contains dev, as this process sees it; ""
	// is DriverRoot. On the host it is /.
	DevRoot string

	// HookPath of nvidia-cdi-hook on the host.
	HookPath string

	// LibrarySearchPaths below DriverRoot, besides the usual ones.
	LibrarySearchPaths []string
}

// memoryLimitHook is the hook that would set limits from the environment.
const memoryLimitHook = "apply-cuda-memory-limits"

// Base implements cdi.Base for real GPUs.
type Base struct {
	options Options
	mu      sync.Mutex
}

var _ cdi.Base = &Base{}

// New checks the options.
func New(options Options) (*Base, error) {
	if options.Library == nil {
		return nil, errors.New("configuring CDI for NVIDIA: there is no NVML")
	}
	if options.DevRoot == "" {
		options.DevRoot = options.DriverRoot
	}
	for name, path := range map[string]string{"driver root": options.DriverRoot, "driver root on the host": options.HostDriverRoot,
		"root of dev": options.DevRoot, "path of nvidia-cdi-hook": options.HookPath} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("configuring CDI for NVIDIA: %s %q is not absolute", name, path)
		}
	}
	return &Base{options: options}, nil
}

// Edits implements cdi.Base.
func (b *Base) Edits(ctx context.Context, uuids []string) (*cdi.BaseEdits, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	generator, err := nvcdi.New(
		nvcdi.WithLogger(logger{klog.FromContext(ctx)}),
		nvcdi.WithNvmlLib(b.options.Library),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(b.options.DriverRoot),
		nvcdi.WithDevRoot(b.options.DevRoot),
		nvcdi.WithNVIDIACDIHookPath(b.options.HookPath),
		nvcdi.WithLibrarySearchPaths(b.options.LibrarySearchPaths),
		nvcdi.WithDisabledHooks(memoryLimitHook),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, fmt.Errorf("asking nvidia-container-toolkit: %w", err)
	}
	common, err := generator.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("asking nvidia-container-toolkit for libraries: %w", err)
	}
	out := &cdi.BaseEdits{Devices: map[string]specs.ContainerEdits{}}
	if out.Common, err = b.forHost(*common.ContainerEdits); err != nil {
		return nil, err
	}
	for _, uuid := range uuids {
		devices, err := generator.GetDeviceSpecsByID(uuid)
		if err != nil {
			return nil, fmt.Errorf("asking nvidia-container-toolkit for device %q: %w", uuid, err)
		}
		if len(devices) == 0 || len(devices[0].ContainerEdits.DeviceNodes) == 0 {
			return nil, fmt.Errorf("asking nvidia-container-toolkit for device %q: it has no device file below %q yet; is the kernel module loaded?", uuid, b.options.DevRoot)
		}
		if strings.HasPrefix(uuid, migPrefix) && countCapabilities(devices[0].ContainerEdits.DeviceNodes) < migCapabilities {
			return nil, fmt.Errorf("asking nvidia-container-toolkit for MIG device %q: the files of its capabilities are missing below %q; make them with nvidia-modprobe -f or nvidia-ctk system create-device-nodes",
				uuid, filepath.Join(b.options.DevRoot, capabilityDir))
		}
		if out.Devices[uuid], err = b.forHost(devices[0].ContainerEdits); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const (
	// migPrefix begins the UUIDs of MIG devices.
	migPrefix = "MIG-"

	// capabilityDir has a file for every GPU instance and compute instance, and a
	// container needs both of its MIG device. The toolkit leaves out files that are
	// not there.
	capabilityDir   = "/dev/nvidia-caps"
	migCapabilities = 2
)

// countCapabilities counts the files of capabilities.
func countCapabilities(nodes []*specs.DeviceNode) int {
	n := 0
	for _, node := range nodes {
		if strings.HasPrefix(node.Path, capabilityDir+"/") {
			n++
		}
	}
	return n
}

// forHost turns paths of this process into paths of the host.
func (b *Base) forHost(edits specs.ContainerEdits) (specs.ContainerEdits, error) {
	spec := &specs.Spec{ContainerEdits: edits}
	transformer := root.NewDriverTransformer(
		root.WithDriverRoot(b.options.DriverRoot), root.WithTargetDriverRoot(b.options.HostDriverRoot),
		root.WithDevRoot(b.options.DevRoot), root.WithTargetDevRoot("/"))
	if err := transformer.Transform(spec); err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("turning paths of NVIDIA's driver into paths of the host: %w", err)
	}
	return spec.ContainerEdits, nil
}

// logger writes the toolkit's messages as structured ones. It implements the
// toolkit's own interface.
type logger struct{ to klog.Logger }

const message = "Message of nvidia-container-toolkit"

func (l logger) write(level int, format string, args []any) {
	l.to.V(level).Info(message, "message", fmt.Sprintf(format, args...))
}

// Most warnings are about optional files, and an error is returned besides.
func (l logger) Tracef(format string, args ...any)   { l.write(8, format, args) }
func (l logger) Debugf(format string, args ...any)   { l.write(6, format, args) }
func (l logger) Infof(format string, args ...any)    { l.write(5, format, args) }
func (l logger) Warningf(format string, args ...any) { l.write(4, format, args) }
func (l logger) Errorf(format string, args ...any)   { l.write(2, format, args) }
