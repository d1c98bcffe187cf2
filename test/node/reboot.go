// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// rebootScript is what the end of all processes does not undo: rebootScript DIRECTORY VOLATILE BOOTID-FILE. Mounts go last
// first, since later ones may lie on earlier ones.
const rebootScript = `
tac /proc/self/mountinfo | while read -r _ _ _ _ target _; do
	case $target in "$1"/* | /run/*) umount --lazy "$target" || exit 1 ;; esac
done || exit 1
rm -rf "$2" /run/* && mkdir -p "$2/cdi" /run/lock &&
{ grep -q " /proc/sys/kernel/random/boot_id " /proc/self/mountinfo || mount --bind "$3" /proc/sys/kernel/random/boot_id; }`

// Reboot does to the node what the loss of power does: every process is killed, drivers included; mounts, the state of
// containerd and the CDI directory are gone; the boot id is another one. Then containerd and the kubelet start. Drivers have
// to be started by whoever started them before.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.powerOff(); err != nil {
		return fmt.Errorf("rebooting node %q: %w", n.opts.Name, err)
	}
	bootID := n.path("boot_id")
	// Written in place: after the first time, this file is what the node sees at /proc/sys/kernel/random/boot_id.
	if err := os.WriteFile(bootID, []byte(uuid.NewUUID()+"\n"), 0o444); err != nil { //nolint:gosec // as in /proc
		return fmt.Errorf("rebooting node %q: %w", n.opts.Name, err)
	}
	if _, err := n.Command(ctx, "/bin/sh", "-c", rebootScript, "reboot", n.dir, n.volatileDir(), bootID); err != nil {
		return fmt.Errorf("rebooting node %q: %w", n.opts.Name, err)
	}
	if err := n.StartContainerd(ctx); err != nil {
		return fmt.Errorf("rebooting node %q: %w", n.opts.Name, err)
	}
	if err := n.StartKubelet(ctx); err != nil {
		return fmt.Errorf("rebooting node %q: %w", n.opts.Name, err)
	}
	return nil
}

// powerOff kills every process of the node without notice.
func (n *Node) powerOff() error {
	n.services.Lock()
	defer n.services.Unlock()
	n.kubelet, n.containerd = nil, nil
	n.mu.Lock()
	processes := n.processes
	n.processes = nil
	n.mu.Unlock()
	// The masters first and all at once, so that none of them restarts or reports what another one loses.
	for _, p := range processes {
		if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	for _, group := range cgroupPaths(n.cgroupMounts, n.cgroup) {
		if err := n.warden.command("kill", group); err != nil {
			return err
		}
	}
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.Stop()) // reaps it
	}
	return errors.Join(errs...)
}
