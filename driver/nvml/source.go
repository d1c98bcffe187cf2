// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/sysfs"
	"github.com/topodra/topodra/topology"
)

// library is what is needed of nvml.Interface.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	Extensions() nvml.ExtendedInterface
	SystemGetDriverVersion() (string, nvml.Return)
	SystemGetCudaDriverVersion() (int, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return)
}

// locator is what is needed of sysfs. It is *sysfs.Reader but for tests.
type locator interface {
	NUMANode(address device.PCIAddress) (int, error)
	PCIeRoot(address device.PCIAddress) (string, error)
	NearestNIC(address device.PCIAddress) (string, error)
	Class(a, b device.PCIAddress) (topology.PCIe, error)
}

var _ locator = &sysfs.Reader{}

// Source reads the GPUs of this node.
type Source struct {
	library  library
	sysfs    locator
	timeout  time.Duration
	watchdog watchdog
	hanging  *quarantine
}

var _ device.Source = &Source{}

// discoveryTimeout is how long a discovery may take. Opening the library alone
// takes seconds per GPU when nothing keeps the driver loaded.
const discoveryTimeout = 2 * time.Minute

// New returns a Source that uses the driver installed below driverRoot and the
// sysfs mounted at sysfsRoot.
func New(driverRoot, sysfsRoot string) (*Source, error) {
	reader, err := sysfs.New(sysfsRoot)
	if err != nil {
		return nil, err
	}
	return newSource(Library(driverRoot), reader), nil
}

// Library returns NVML of the driver installed below driverRoot, not initialised.
func Library(driverRoot string) nvml.Interface {
	return nvml.New(nvml.WithLibraryPath(findLibrary(driverRoot)))
}

// newSource returns a Source on top of any library.
func newSource(lib library, reader locator) *Source {
	return &Source{library: lib, sysfs: reader, timeout: discoveryTimeout, watchdog: newWatchdog(), hanging: newQuarantine(lib)}
}

// libraryName is what the driver's installer makes for users of the library.
const libraryName = "libnvidia-ml.so.1"

// libraryDirs are where distributions put the library.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib",
}

// findLibrary returns the path of the library below root. If it is in none of the
// usual places, the bare name is returned, which the dynamic linker looks up.
func findLibrary(root string) string {
	for _, dir := range libraryDirs {
		path := filepath.Join(root, dir, libraryName)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return libraryName
}

// Discover implements device.Source.
func (s *Source) Discover(ctx context.Context) (*device.Snapshot, error) {
	snapshot, err := s.watchdog.run(ctx, s.timeout, func(begin func(string)) (*device.Snapshot, error) {
		return s.read(ctx, &caller{library: s.library, begin: begin, known: map[string]bool{}})
	})
	if err != nil {
		return nil, fmt.Errorf("discovering GPUs by NVML: %w", err)
	}
	return snapshot, nil
}

// read opens the library, reads everything and closes it.
func (s *Source) read(ctx context.Context, c *caller) (snapshot *device.Snapshot, err error) {
	c.begin("Init")
	if ret := s.library.Init(); ret != nvml.SUCCESS {
		return nil, initError(ret)
	}
	defer func() {
		c.begin("Shutdown")
		if ret := s.library.Shutdown(); ret != nvml.SUCCESS && err == nil {
			snapshot, err = nil, fmt.Errorf("closing the library: %w", ret)
		}
	}()
	scan := &scan{caller: c, sysfs: s.sysfs, hanging: s.hanging}
	return scan.run(ctx)
}

// initError says what an administrator can do.
func initError(ret nvml.Return) error {
	switch {
	case errors.Is(ret, nvml.ERROR_LIBRARY_NOT_FOUND):
		return fmt.Errorf("opening %s: %w; is NVIDIA's driver installed, and below --driver-root?", libraryName, ret)
	case errors.Is(ret, nvml.ERROR_DRIVER_NOT_LOADED):
		return fmt.Errorf("opening the library: %w; load NVIDIA's kernel module", ret)
	case errors.Is(ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		return fmt.Errorf("opening the library: %w; the library and the kernel module are of different versions, reboot or reload the module", ret)
	default:
		return fmt.Errorf("opening the library: %w", ret)
	}
}
