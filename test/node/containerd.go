// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// runcPath is where Debian's package runc puts its program.
const runcPath = "/usr/sbin/runc"

// containerdTemplate is containerd's configuration.
//
// Containers are born with the score of their parent against the out-of-memory killer when containerd may not lower it.
//
//go:embed containerd.toml.tmpl
var containerdTemplate string

// cniTemplate gives each pod a point-to-point link to this machine, and no further.
const cniTemplate = `{
  "cniVersion": "1.0.0",
  "name": "topodra",
  "plugins": [{
    "type": "ptp",
    "ipMasq": false,
    "ipam": {"type": "host-local", "dataDir": %s, "ranges": [[{"subnet": %s}]]}
  }]
}
`

// containerdConfig is what the template needs; all paths are absolute.
type containerdConfig struct {
	Root, State, Temp, Socket, CDIDir, CNIBinDir, CNIConfDir, NRISocket, NRIDir, OptDir, Runc, PauseImage string
}

// render fills in the template. Paths come from this package and have no characters that TOML would have to escape.
func (c containerdConfig) render() ([]byte, error) {
	t, err := template.New("containerd").Option("missingkey=error").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(containerdTemplate)
	if err != nil {
		return nil, fmt.Errorf("reading the template of containerd's configuration: %w", err)
	}
	var text strings.Builder
	if err := t.Execute(&text, c); err != nil {
		return nil, fmt.Errorf("filling in containerd's configuration: %w", err)
	}
	return []byte(text.String()), nil
}

// cniConfig returns the network configuration.
func cniConfig(dataDir string, subnet netip.Prefix) []byte {
	return fmt.Appendf(nil, cniTemplate, strconv.Quote(dataDir), strconv.Quote(subnet.Masked().String()))
}

// writeContainerdConfig writes the configurations of containerd and of the pods' network.
func (n *Node) writeContainerdConfig() error {
	config, err := containerdConfig{
		Root: n.path("containerd"), State: n.containerdState(), Temp: n.path("tmp"), Socket: n.ContainerdSocket(),
		CDIDir: n.CDIDir(), CNIBinDir: cniBinDir, CNIConfDir: n.path("cni"), NRISocket: n.NRISocket(), NRIDir: n.path("nri"),
		OptDir: n.path("opt"), Runc: runcPath, PauseImage: PauseRef,
	}.render()
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(n.path("containerd.toml"), config, 0o600),
		os.WriteFile(n.path("cni", "10-topodra.conflist"), cniConfig(n.path("ipam"), n.opts.PodSubnet), 0o600),
	)
	if err != nil {
		return fmt.Errorf("writing containerd's configuration: %w", err)
	}
	return nil
}

// volatileDir stands for /run: its content does not outlive a reboot.
func (n *Node) volatileDir() string { return n.path("run") }

func (n *Node) containerdState() string { return filepath.Join(n.volatileDir(), "containerd") }

// StartContainerd starts containerd and returns when it answers. It does nothing if containerd runs.
func (n *Node) StartContainerd(ctx context.Context) error {
	n.services.Lock()
	defer n.services.Unlock()
	if n.containerd != nil {
		return nil
	}
	p, err := n.Run(ProcessOptions{
		Name: Containerd, Path: filepath.Join(n.opts.BinDir, Containerd), Args: []string{"--config=" + n.path("containerd.toml")},
		Env: []string{"PATH=" + n.opts.BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
	if err != nil {
		return err
	}
	if n.cri == nil {
		if n.cri, err = dialCRI(n.ContainerdSocket()); err != nil {
			return errors.Join(err, p.Stop())
		}
	}
	if err := p.WaitReady(ctx, readyTimeout, n.cri.ready); err != nil {
		return errors.Join(fmt.Errorf("starting %q: %w", Containerd, err), p.Stop())
	}
	n.containerd = p
	return nil
}

// StopContainerd stops containerd. Containers go on, with their shims. It does nothing if containerd does not run.
func (n *Node) StopContainerd() error {
	n.services.Lock()
	defer n.services.Unlock()
	p := n.containerd
	n.containerd = nil
	if p == nil {
		return nil
	}
	return p.Stop()
}
