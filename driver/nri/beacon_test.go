// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"bufio"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"

	"github.com/topodra/topodra/driver/cdi"
)

// beaconEnv turns the test binary into a process that lights a beacon and waits
// for its end.
const beaconEnv = "TOPODRA_TEST_BEACON"

// lightAndWait is that process.
func lightAndWait(dir string) {
	if err := NewBeacon(dir, nil).light(); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("lit\n")
	select {}
}

// isThere asks as the CDI library does.
func isThere(t *testing.T, dir string) bool {
	t.Helper()
	info, err := os.Lstat(cdi.GuardDevice(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		t.Fatal(err)
	}
	return err == nil && info.Mode()&fs.ModeDevice != 0
}

func mustLight(t *testing.T, b *Beacon) {
	t.Helper()
	if err := b.light(); err != nil {
		t.Fatal(err)
	}
}

// TestBeaconEndsWithItsProcess: nobody has to do anything for the device to go,
// and specs keep its path.
func TestBeaconEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append(os.Environ(), beaconEnv+"="+dir)
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(output).ReadString('\n')
	lit, device := isThere(t, dir), NewBeacon(dir, nil).Device()
	killErr := process.Process.Kill()
	_ = process.Wait() // it was killed
	if readErr != nil || killErr != nil || line != "lit\n" {
		t.Fatalf("the process said %q, %v, %v", line, readErr, killErr)
	}
	if !lit || device != cdi.GuardDevice(dir) {
		t.Errorf("while the process lived: device there: %t, path %q", lit, device)
	}
	if isThere(t, dir) {
		t.Error("the device has outlived its process")
	}
	next := NewBeacon(dir, nil)
	if got := next.Device(); got != device {
		t.Errorf("path after the end: got %q, want %q", got, device)
	}
	mustLight(t, next)
	defer next.douse()
	if !isThere(t, dir) {
		t.Error("the next process cannot light the beacon")
	}
}

// TestBeaconOfTwoDrivers: the device is there as long as one of them is.
func TestBeaconOfTwoDrivers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, next := NewBeacon(dir, nil), NewBeacon(dir, nil)
	if old.Device() != "" || old.douse() {
		t.Error("there is a device before anybody was connected")
	}
	mustLight(t, old)
	mustLight(t, next)
	if !old.douse() || old.douse() || !isThere(t, dir) {
		t.Error("the old driver has taken the new one's device along")
	}
	// And the other way: the new one does not make it.
	mustLight(t, old)
	mustLight(t, next)
	mustLight(t, next) // as it does every second; the link stays the old one's, which works
	old.douse()
	mustLight(t, next)
	if !isThere(t, dir) {
		t.Error("the one that stays has not taken over")
	}
	next.douse()
	if isThere(t, dir) {
		t.Error("the device is there although nobody is connected")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v, want the link alone", entries, err)
	}
}

// TestBeaconThatTheRuntimeCannotSee: then specs are to have no device, and those
// that have one are to be written anew.
func TestBeaconThatTheRuntimeCannotSee(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := 0
	b := NewBeacon(dir, func() { calls++ })
	mustLight(t, b)
	mustLight(t, b)
	if calls != 1 {
		t.Errorf("told of the device %d times, want once", calls)
	}
	b.fit(false)
	b.douse()
	mustLight(t, b)
	mustLight(t, b)
	if got := b.Device(); got != "" || isThere(t, dir) || calls != 2 {
		t.Errorf("got path %q, %d calls", got, calls)
	}
	b.fit(true)
	mustLight(t, b)
	defer b.douse()
	if b.Device() == "" || !isThere(t, dir) || calls != 3 {
		t.Errorf("after the driver has got the runtime's process IDs: path %q, %d calls", b.Device(), calls)
	}
	// What nobody can make is an error, and no device.
	lost := NewBeacon(filepath.Join(dir, "missing"), nil)
	if err := lost.light(); !errors.Is(err, fs.ErrNotExist) || lost.Device() != "" {
		t.Errorf("got error %v, path %q", err, lost.Device())
	}
	lost.douse()
}

// TestNoBeacon: nil is one that is never there.
func TestNoBeacon(t *testing.T) {
	t.Parallel()
	var none *Beacon
	none.fit(true)
	if err := none.light(); err != nil || none.Device() != "" || none.douse() {
		t.Errorf("got error %v, path %q", err, none.Device())
	}
}

// TestBeaconFollowsTheConnection: it is dark before the runtime knows the plugin
// and after either side has ended, and dark before the plugin hangs up.
func TestBeaconFollowsTheConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	dir, state := t.TempDir(), t.TempDir()
	socket := filepath.Join(dir, "nri.sock")
	way := newProxy(t, socket)
	runner := NewRunner(f.plugin, socket, NewBeacon(state, nil))
	stop := run(t, runner)
	defer stop()
	if isThere(t, state) {
		t.Error("lit without a runtime")
	}
	first := newRuntime(t, filepath.Join(dir, "1.sock"))
	defer first.Stop()
	way.lead(first.socket)
	first.wait(t)
	if !isThere(t, state) {
		t.Error("dark although the plugin is in use")
	}
	way.lead("")
	waitFor(t, func() bool { return !isThere(t, state) })
	second := newRuntime(t, filepath.Join(dir, "2.sock"))
	defer second.Stop()
	way.lead(second.socket)
	second.wait(t)
	if !isThere(t, state) {
		t.Error("dark after the second connection")
	}
	// Somebody removes the link: it comes back.
	if err := os.Remove(filepath.Join(state, cdi.GuardDeviceDir)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return isThere(t, state) })
	// The plugin still answers for containers whose specs were applied before.
	name := f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10)
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	waitFor(t, func() bool { return !isThere(t, state) })
	answer, err := second.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: pod(), Container: container("late", name)})
	if err != nil || answer.GetAdjust() == nil {
		t.Errorf("a container that was being made when the driver stopped: got %v, %v", answer, err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the runner does not end")
	}
}

// TestSharesProcessIDs: with this process, yes; without an answer, no.
func TestSharesProcessIDs(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if !sharesProcessIDs(conn) {
		t.Error("a socket of this process: got no")
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if sharesProcessIDs(conn) {
		t.Error("a closed connection: got yes")
	}
	one, other := net.Pipe()
	defer func() { _, _ = one.Close(), other.Close() }()
	if sharesProcessIDs(one) {
		t.Error("a pipe: got yes")
	}
}

// TestBeaconIsTheNullDevice: what the process ID of a driver that has ended leads to
// by now does not keep the beacon lit for the next one.
func TestBeaconIsTheNullDevice(t *testing.T) {
	t.Parallel()
	state, elsewhere := t.TempDir(), t.TempDir()
	b := NewBeacon(state, nil)
	mustLight(t, b)
	defer b.douse()
	link := filepath.Join(state, cdi.GuardDeviceDir)
	// Two devices that every machine has, and what is no device.
	for name, target := range map[string]string{"zero": "/dev/zero", "tty": "/dev/tty", "file": os.DevNull + "x"} {
		dir := filepath.Join(elsewhere, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, "null")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		if b.leads() {
			t.Errorf("a link to %s is taken for the null device", target)
		}
		mustLight(t, b)
		if !b.leads() {
			t.Errorf("the beacon is dark after the link led to %s", target)
		}
	}
}
