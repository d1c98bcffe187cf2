// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/topodra/topodra/driver/cdi"
)

// A Beacon is a device on the host that is there exactly as long as a driver is
// connected to the runtime, for the guards in CDI specs (see cdi.Guard). The
// kernel takes it away with the process, however that ends: it is the null device
// as seen through an open file of the process,
//
//	<state>/the-topodra-nri-plugin-is-connected → /proc/<pid>/fd/<open /dev> ; …/null
//
// Drivers on one state directory share the link. It leads to the one that has
// connected last; if that one ends first, another takes over by itself. The
// runtime can follow it only if it has the same process IDs as the driver. Where
// it has not (a driver without hostPID), there is no link and thus no device.
//
// A Beacon is safe for concurrent use. Nil is one that is never there.
type Beacon struct {
	link    string
	changed func()

	mu     sync.Mutex
	dir    *os.File // /dev, while the beacon is lit
	unfit  bool     // the runtime has other process IDs
	before string   // what Device answered last
}

// NewBeacon returns a beacon in the state directory, which must exist. changed,
// if it is not nil, is called when Device begins to answer something else, with
// specs to be written anew.
func NewBeacon(stateDir string, changed func()) *Beacon {
	b := &Beacon{link: filepath.Join(stateDir, cdi.GuardDeviceDir), changed: changed}
	b.before = b.Device()
	return b
}

// Device is the path of the device for CDI specs, or "" where there should be
// none. The link outlives its process, so that specs stay the same while the
// driver restarts.
func (b *Beacon) Device() string {
	if b == nil {
		return ""
	}
	if info, err := os.Lstat(b.link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return ""
	}
	return cdi.GuardDevice(filepath.Dir(b.link))
}

// fit notes whether the runtime could see the device.
func (b *Beacon) fit(fits bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.unfit = !fits
	b.mu.Unlock()
}

// light makes the device appear, or keeps it there. It is called again and again
// while the plugin is connected.
func (b *Beacon) light() error {
	if b == nil {
		return nil
	}
	err := b.lead()
	b.mu.Lock()
	now := b.Device()
	tell := now != b.before && b.changed != nil
	b.before = now
	b.mu.Unlock()
	if tell {
		b.changed()
	}
	return err
}

// lead makes the link lead to a device.
func (b *Beacon) lead() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unfit {
		if err := os.Remove(b.link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing what tells the runtime that the NRI plugin is connected: %w", err)
		}
		return nil
	}
	fresh := b.dir == nil
	if fresh {
		dir, err := os.Open("/dev")
		if err != nil {
			return fmt.Errorf("telling the runtime that the NRI plugin is connected: %w", err)
		}
		b.dir = dir
	}
	if !fresh && b.leads() {
		return nil
	}
	target := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.dir.Fd())
	temp := b.link + ".new-" + strconv.Itoa(os.Getpid())
	_ = os.Remove(temp) // of a process of that ID that was killed; if it cannot be removed, the next step fails
	if err := os.Symlink(target, temp); err != nil {
		return fmt.Errorf("telling the runtime that the NRI plugin is connected: %w", err)
	}
	if err := os.Rename(temp, b.link); err != nil {
		return errors.Join(fmt.Errorf("telling the runtime that the NRI plugin is connected: %w", err), os.Remove(temp))
	}
	return nil
}

// leads says whether the link leads to the null device, ours or another driver's. It
// goes through a process ID, which may by now be that of a process which is no driver
// and has something else at that place.
func (b *Beacon) leads() bool {
	var stat syscall.Stat_t
	err := syscall.Lstat(cdi.GuardDevice(filepath.Dir(b.link)), &stat)
	return err == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFCHR && stat.Rdev == nullRdev
}

// nullRdev is the number of the null device, major 1 and minor 3.
const nullRdev = 1<<8 | 3

// douse makes our device disappear, at once, and says whether it was there.
func (b *Beacon) douse() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == nil {
		return false
	}
	_ = b.dir.Close() // a directory has nothing to write back
	b.dir = nil
	return true
}

// sharesProcessIDs says whether the process that listens at the other end of a
// unix connection has the same process IDs as this one. If that cannot be found
// out, it has not.
func sharesProcessIDs(conn net.Conn) bool {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || peerErr != nil {
		return false
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", peer.Pid))
	return err == nil && own == theirs
}
