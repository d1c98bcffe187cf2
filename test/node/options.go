// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/topodra/topodra/test/cluster"
)

// Names of the programs in the binary directory.
const (
	// Kubelet is the node's agent.
	Kubelet = "kubelet"
	// Containerd is the container runtime.
	Containerd = "containerd"
	// ContainerdShim is what holds a pod's containers.
	ContainerdShim = "containerd-shim-runc-v2"
	// Ctr is containerd's own client; it imports images.
	Ctr = "ctr"
)

// cniBinDir is where Debian's package containernetworking-plugins puts its programs.
const cniBinDir = "/usr/lib/cni"

// Options says how to start a node. The zero value is a good default.
type Options struct {
	// Name is the node's name; default: "node".
	Name string
	// BinDir holds the binaries; default: what [cluster.BinDir] returns.
	BinDir string
	// Dir is the node's directory: images, sockets, state, logs. It is created, and removed by Stop; it must not exist and must be
	// short, because sockets are below it. Default: a new temporary one.
	Dir string
	// LogDir receives one log file per process and start; default: logs/ in the node's directory, which Stop removes.
	LogDir string
	// RemoveToo are further directories that are removed when the launcher dies before Stop: the control plane's, for example,
	// whose processes die with the launcher. Stop leaves them alone.
	RemoveToo []string
	// Labels are added to those that the kubelet sets itself.
	Labels map[string]string
	// FeatureGates goes to the kubelet as --feature-gates ("A=true,B=false").
	FeatureGates string
	// PodSubnet gives pods their addresses, one each; default: 198.18.250.0/24, of the range for benchmarks, which no network uses.
	PodSubnet netip.Prefix
	// KubeletConfig is laid over the kubelet's configuration, field by field.
	KubeletConfig map[string]any
}

// safePath is what the warden's shell takes for a directory that may be removed.
var safePath = regexp.MustCompile(`^/[A-Za-z0-9/_.-]+$`)

// hiddenDirs are the directories that are empty in the node's mount namespace.
var hiddenDirs = []string{"/run", "/var/run", "/var/lib", "/var/log"}

// complete fills in defaults and refuses what cannot work.
func (o Options) complete() (Options, error) {
	if os.Geteuid() != 0 {
		return o, errors.New("a node needs root: it makes cgroups, mounts and network namespaces")
	}
	o.Name = cmp.Or(o.Name, "node")
	if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		return o, fmt.Errorf("node name %q: %s", o.Name, problems[0])
	}
	if !o.PodSubnet.IsValid() {
		o.PodSubnet = netip.MustParsePrefix("198.18.250.0/24")
	}
	if o.BinDir == "" {
		dir, err := cluster.BinDir()
		if err != nil {
			return o, fmt.Errorf("looking for the node's programs: %w", err)
		}
		o.BinDir = dir
	}
	if err := checkPrograms(o.BinDir); err != nil {
		return o, err
	}
	for _, dir := range append(slices.Clone(o.RemoveToo), o.Dir, o.LogDir) {
		if err := checkRemovable(dir); dir != "" && err != nil {
			return o, err
		}
	}
	return o, nil
}

// checkRemovable refuses paths that should not be handed to something that removes them.
func checkRemovable(dir string) error {
	if !safePath.MatchString(dir) || filepath.Clean(dir) != dir || filepath.Dir(dir) == "/" {
		return fmt.Errorf("directory %q: want a plain absolute path at least two levels deep, of letters, digits and ._-", dir)
	}
	return nil
}

// checkVisible refuses directories that are empty for the node's processes.
func checkVisible(dir string) error {
	for _, hidden := range hiddenDirs {
		if rel, err := filepath.Rel(hidden, dir); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("directory %q: the node cannot see what is below %q: set TMPDIR, or name another one", dir, hidden)
		}
	}
	return nil
}

// makeDir makes the node's directory.
func (o *Options) makeDir() error {
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "tn-")
		if err != nil {
			return fmt.Errorf("creating the node's directory: %w", err)
		}
		o.Dir = dir
	} else if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return fmt.Errorf("creating the node's directory: %w", err)
	}
	// What containers are given from here has to be reachable for any user in them.
	if err := os.Chmod(o.Dir, 0o711); err != nil { //nolint:gosec // see above
		return fmt.Errorf("creating the node's directory: %w", err)
	}
	o.LogDir = cmp.Or(o.LogDir, filepath.Join(o.Dir, "logs"))
	return errors.Join(checkVisible(o.Dir), checkVisible(o.LogDir), checkVisible(o.BinDir))
}

// checkPrograms looks for everything at once: one message about what is missing rather than one per try.
func checkPrograms(binDir string) error {
	var errs []error
	for _, name := range []string{Kubelet, Containerd, ContainerdShim, Ctr} {
		if _, err := exec.LookPath(filepath.Join(binDir, name)); err != nil {
			errs = append(errs, fmt.Errorf("looking for %q: run `make binaries-node` in the repository: %w", name, err))
		}
	}
	for _, path := range []string{runcPath, busyboxPath, filepath.Join(cniBinDir, "ptp"), filepath.Join(cniBinDir, "loopback")} {
		if _, err := exec.LookPath(path); err != nil {
			errs = append(errs, fmt.Errorf("looking for %q: run hack/install-node-deps.sh in the repository: %w", path, err))
		}
	}
	return errors.Join(errs...)
}
