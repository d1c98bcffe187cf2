// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/publish"
)

// maxSocketPath is how long the path of a unix socket can be on Linux: 108 bytes
// with the zero byte at the end.
const maxSocketPath = 107

// Names of the two sockets, which the helper derives from the driver's name.
const (
	registrationSocket = api.DriverName + "-reg.sock"
	pluginSocket       = "dra.sock"
)

// Config is what Run needs.
type Config struct {
	// Client talks to the API server.
	Client kubernetes.Interface

	// Source finds GPUs.
	Source device.Source

	// Publish says how they are offered, and names the node.
	Publish publish.Options

	// RegistryDir is the kubelet's directory for registration sockets. It must
	// exist.
	RegistryDir string

	// DataDir is the directory of this driver alone. It is made if needed.
	DataDir string

	// RescanPeriod is the time between two discoveries. 0 means never, other than
	// at the start and by Rescan.
	RescanPeriod time.Duration

	// Rescan asks for a discovery right away. It may be nil.
	Rescan <-chan struct{}

	// HTTPAddress serves /healthz, /readyz and /metrics; "" serves nothing.
	HTTPAddress string

	// HAMiMetricAliases tells metrics by the names that HAMi has for them, too.
	HAMiMetricAliases bool

	// Claims says how claims are prepared. Nil only publishes: every claim is
	// answered with ErrNotSupported.
	Claims *ClaimsConfig

	// Health says how GPUs are watched. Nil publishes them without taints, and
	// tells nobody about their health.
	Health *HealthConfig

	// ledger of Health, once it is there.
	ledger *health.Ledger
}

// minRescanPeriod keeps a mistyped period from keeping the node busy.
const minRescanPeriod = time.Second

// Validate reports the first thing that is wrong with the configuration.
func (c *Config) Validate() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("checking driver configuration: %w", err)
	}
	return nil
}

func (c *Config) validate() error {
	switch {
	case c.Client == nil:
		return errors.New("there is no client")
	case c.Source == nil:
		return errors.New("there is no source of devices")
	case c.RescanPeriod != 0 && c.RescanPeriod < minRescanPeriod:
		return fmt.Errorf("rescan period %s is less than %s; 0 turns rescanning off", c.RescanPeriod, minRescanPeriod)
	}
	if err := c.Publish.Validate(); err != nil {
		return err
	}
	if c.Claims != nil {
		if err := c.Claims.validate(); err != nil {
			return err
		}
	}
	if c.Health != nil {
		if err := c.Health.validate(); err != nil {
			return err
		}
	} else if c.Claims != nil && c.Claims.OnViolation == OnViolationTaint {
		return errNoHealth
	}
	registration, plugin := c.socketNames()
	if err := checkSocketPath("plugin registry", c.RegistryDir, registration); err != nil {
		return err
	}
	return checkSocketPath("plugin data", c.DataDir, plugin)
}

// podUID of the driver's own pod; "" when versions do not run side by side.
func (c *Config) podUID() types.UID {
	if c.Claims == nil {
		return ""
	}
	return c.Claims.PodUID
}

// socketNames are those that the helper will use.
func (c *Config) socketNames() (registration, plugin string) {
	uid := c.podUID()
	if uid == "" {
		return registrationSocket, pluginSocket
	}
	return kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, api.DriverName, uid), "dra-" + string(uid) + ".sock"
}

// checkSocketPath reports a directory in which the socket's path would be too
// long for the kernel.
func checkSocketPath(what, dir, socket string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%s directory %q is not an absolute path, which the kubelet needs", what, dir)
	}
	if path := filepath.Join(dir, socket); len(path) > maxSocketPath {
		return fmt.Errorf("%s directory %q is too long: the socket %q would have %d bytes, the limit is %d; choose a directory that is at least %d bytes shorter",
			what, dir, path, len(path), maxSocketPath, len(path)-maxSocketPath)
	}
	return nil
}

// prepareDirs makes sure that both sockets can be made.
func (c *Config) prepareDirs() error {
	info, err := os.Stat(c.RegistryDir)
	if err != nil {
		return fmt.Errorf("looking for the kubelet's plugin registry: %w; is this a node, and is the directory mounted?", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("looking for the kubelet's plugin registry: %q is not a directory", c.RegistryDir)
	}
	if err := os.MkdirAll(c.DataDir, 0o750); err != nil {
		return fmt.Errorf("making the plugin data directory: %w", err)
	}
	return nil
}
