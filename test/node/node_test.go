// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCgroupMounts checks which hierarchies are found on the three kinds of machines.
func TestCgroupMounts(t *testing.T) {
	const (
		root    = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
		cpu     = "33 30 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
		named   = "31 30 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
		again   = "99 30 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
		hybrid  = "32 30 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		tmpfs   = "30 23 0:25 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro\n"
	)
	for name, test := range map[string]struct {
		mountinfo string
		want      []string
	}{
		"version 1":     {root + tmpfs + named + cpu + again, []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/systemd"}},
		"hybrid":        {root + tmpfs + cpu + hybrid, []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"}},
		"version 2":     {root + unified, []string{"/sys/fs/cgroup"}},
		"none":          {root, nil},
		"no such table": {"nonsense\n", nil},
	} {
		got, err := cgroupMounts(strings.NewReader(test.mountinfo))
		if !slices.Equal(got, test.want) || (err != nil) != (test.want == nil) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, test.want)
		}
	}
	if _, err := cgroupMounts(strings.NewReader(root)); !errors.Is(err, errNoCgroups) {
		t.Errorf("no hierarchy: got %v, want %v", err, errNoCgroups)
	}
	want := []string{"/a/n/system", "/b/n/system"}
	if got := cgroupPaths([]string{"/a", "/b"}, "n", "system"); !slices.Equal(got, want) {
		t.Errorf("paths: got %q, want %q", got, want)
	}
}

// entry is what a tar archive says about one file.
type entry struct {
	Type       byte
	Mode       int64
	Link, Text string
}

// readTar returns names in their order, and entries.
func readTar(t *testing.T, data []byte) (names []string, entries map[string]entry) {
	t.Helper()
	entries = map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		entries[header.Name] = entry{header.Typeflag, header.Mode, header.Linkname, string(text)}
	}
}

// TestArchive reads an image back.
func TestArchive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("content"), 0o700); err != nil { //nolint:gosec // the bits are under test
		t.Fatal(err)
	}
	image := Image{
		Ref: "docker.io/local/x:1", Entrypoint: []string{"/a/b"}, Cmd: []string{"c"}, Env: []string{"D=e"},
		Files: []File{
			{Path: "/a/b", Source: source}, {Path: "/a/link", Link: "b"}, {Path: "/tmp", Dir: true, Mode: 0o777 | os.ModeSticky},
			{Path: "/a/text", Content: []byte("text"), Mode: 0o600},
		},
	}
	var first, second bytes.Buffer
	if err := errors.Join(image.Archive(&first), image.Archive(&second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same image differ")
	}
	_, archive := readTar(t, first.Bytes())
	names, layer := readTar(t, []byte(archive["layer.tar"].Text))
	if want := []string{"a/", "a/b", "a/link", "tmp/", "a/text"}; !slices.Equal(names, want) {
		t.Errorf("files: got %q, want %q", names, want)
	}
	want := map[string]entry{
		"a/": {tar.TypeDir, 0o755, "", ""}, "a/b": {tar.TypeReg, 0o700, "", "content"}, "a/link": {tar.TypeSymlink, 0o777, "b", ""},
		"tmp/": {tar.TypeDir, 0o1777, "", ""}, "a/text": {tar.TypeReg, 0o600, "", "text"},
	}
	if diff := cmp.Diff(want, layer); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	var manifests []manifest
	if err := json.Unmarshal([]byte(archive["manifest.json"].Text), &manifests); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]manifest{{Config: "config.json", RepoTags: []string{image.Ref}, Layers: []string{"layer.tar"}}}, manifests); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	var config imageConfig
	if err := json.Unmarshal([]byte(archive["config.json"].Text), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.RootFS.DiffIDs) != 1 || !slices.Equal(config.Config.Cmd, image.Cmd) || !slices.Equal(config.Config.Env, image.Env) {
		t.Errorf("configuration: got %+v, want that of the image", config)
	}
	for name, files := range map[string][]File{
		"relative": {{Path: "a"}}, "root": {{Path: "/"}}, "unclean": {{Path: "/a/../b"}},
		"twice": {{Path: "/a"}, {Path: "/a"}}, "missing": {{Path: "/a", Source: "/no/such/file"}},
	} {
		if err := (Image{Ref: "x", Files: files}).Archive(io.Discard); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// TestPlainLog removes what the log format adds.
func TestPlainLog(t *testing.T) {
	const log = "2026-01-02T15:04:05.0Z stdout F first\n2026-01-02T15:04:05.0Z stdout P cut \n2026-01-02T15:04:05.0Z stdout F in two\nnonsense\n" +
		"2026-01-02T15:04:05.0Z stderr F \n"
	if got, want := plainLog(log), "first\ncut in two\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestConfigurations checks that what is written is what its readers take.
func TestConfigurations(t *testing.T) {
	var network struct {
		Plugins []struct {
			Type string
			IPAM struct {
				DataDir string
				Ranges  [][]struct{ Subnet string }
			}
		}
	}
	if err := json.Unmarshal(cniConfig("/d", netip.MustParsePrefix("198.18.3.9/24")), &network); err != nil {
		t.Fatal(err)
	}
	if p := network.Plugins; len(p) != 1 || p[0].Type != "ptp" || p[0].IPAM.DataDir != "/d" || p[0].IPAM.Ranges[0][0].Subnet != "198.18.3.0/24" {
		t.Errorf("network: got %+v", network)
	}
	config, err := containerdConfig{CDIDir: "/the/cdi", NRIDir: "/the/nri", PauseImage: "p"}.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`cdi_spec_dirs = ["/the/cdi"]`, `plugin_path = "/the/nri/plugins"`, `sandbox = "p"`} {
		if !strings.Contains(string(config), want) {
			t.Errorf("containerd's configuration: %s is missing in:\n%s", want, config)
		}
	}
}

// TestDirectories checks which directories are refused, and why.
func TestDirectories(t *testing.T) {
	for _, dir := range []string{"", "relative/dir", "/toplevel", "/tmp/a b", "/tmp/../etc", "/tmp/$x", "/tmp/a/"} {
		if err := checkRemovable(dir); err == nil {
			t.Errorf("removing %q: got no error", dir)
		}
	}
	for _, dir := range []string{"/var/log/x", "/run/user/0/tn-1", "/var/lib", "/var/run/x"} {
		if err := checkVisible(dir); err == nil {
			t.Errorf("directory %q, which the node does not see: got no error", dir)
		}
	}
	for _, dir := range []string{"/tmp/tn-1", "/runner/work", "/var/lib2/x.y_z"} {
		if err := errors.Join(checkRemovable(dir), checkVisible(dir)); err != nil {
			t.Error(err)
		}
	}
}

// TestLink cuts a connection and restores it.
func TestLink(t *testing.T) {
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for { // an echo server
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	k, err := startLink("https://" + server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(k.url(), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	echo := func(conn net.Conn) error {
		if _, err := conn.Write([]byte("ping")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 4))
		return err
	}
	// works tries twice: what is written before the end arrives does not fail.
	works := func(conn net.Conn) bool {
		first := echo(conn)
		second := echo(conn)
		return first == nil || second == nil
	}
	old := dial()
	defer old.Close()
	if err := echo(old); err != nil {
		t.Fatal(err)
	}
	k.set(true)
	if works(old) {
		t.Error("open connection of a link that is cut: it still works")
	}
	during := dial()
	defer during.Close()
	if works(during) {
		t.Error("new connection on a link that is cut: it works")
	}
	k.set(false)
	after := dial()
	defer after.Close()
	if err := echo(after); err != nil {
		t.Errorf("connection after the link was restored: %v", err)
	}
	if err := k.close(); err != nil {
		t.Fatal(err)
	}
	if works(after) {
		t.Error("connection of a link that was closed: it still works")
	}
}

func TestFootprint(t *testing.T) {
	t.Parallel()
	now, err := Footprint()
	if err != nil {
		t.Fatal(err)
	}
	if len(now["mounts"]) == 0 || len(now["/etc"]) == 0 || len(now["settings"]) != len(footprintSettings) {
		t.Errorf("footprint: got %d mounts, %d files in /etc, settings %q", len(now["mounts"]), len(now["/etc"]), now["settings"])
	}
	before := map[string][]string{"mounts": {"a", "b"}, "/etc": {"x"}}
	if errs := compareFootprints(before, map[string][]string{"/etc": {"x"}, "mounts": {"b", "a"}}); len(errs) != 0 {
		t.Errorf("the same in another order: got %v", errs)
	}
	err = errors.Join(compareFootprints(before, map[string][]string{"mounts": {"a", "c"}, "links": {"d"}})...)
	want := `taken from this machine: /etc: "x"
left behind on this machine: links: "d"
left behind on this machine: mounts: "c"
taken from this machine: mounts: "b"`
	if err == nil || err.Error() != want {
		t.Errorf("differences: got %v, want %s", err, want)
	}
	if err := checkNoTrace(t.TempDir()); err == nil {
		t.Error("a directory that is there: got no error")
	}
	if err := checkNoTrace(filepath.Join(t.TempDir(), "gone")); err != nil {
		t.Error(err)
	}
}
