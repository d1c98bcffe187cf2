// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// addPCI adds a device with its NUMA node to a tree.
func addPCI(tree fstest.MapFS, where, numa string) {
	dir := path.Join("devices", where)
	tree[path.Join(dir, "numa_node")] = &fstest.MapFile{Data: []byte(numa + "\n")}
	tree[path.Join("bus/pci/devices", path.Base(where))] = &fstest.MapFile{
		Mode: fs.ModeSymlink | 0o777, Data: []byte("../../../" + dir)}
}

// addClass adds an entry of a device class below a PCI device.
func addClass(tree fstest.MapFS, class, where, name string) {
	tree[path.Join("class", class, name)] = &fstest.MapFile{
		Mode: fs.ModeSymlink | 0o777, Data: []byte("../../" + path.Join("devices", where, class, name))}
}

// Two switches below one root port, a second root port and a second root on NUMA
// node 0, and a third root on node 1.
const (
	rootPort = "pci0000:00/0000:00:01.0"
	switchA  = rootPort + "/0000:01:00.0"
	switchB  = switchA + "/0000:02:08.0/0000:08:00.0"
	gpu0     = switchA + "/0000:02:00.0/0000:03:00.0"
	gpu1     = switchA + "/0000:02:04.0/0000:04:00.0"
	gpu2     = switchB + "/0000:09:00.0/0000:0a:00.0"
	gpu3     = "pci0000:00/0000:00:03.0/0000:20:00.0"
	gpu4     = "pci0000:40/0000:40:01.0/0000:41:00.0"
	gpu5     = "pci0000:80/0000:80:01.0/0000:81:00.0"
	gpu6     = "pci0000:c0/0000:c0:01.0/0000:c1:00.0"
)

// address returns where a GPU is.
func address(where string) device.PCIAddress { return device.PCIAddress(path.Base(where)) }

// exampleTree has the GPUs above. The firmware does not place gpu6.
func exampleTree() fstest.MapFS {
	tree := fstest.MapFS{}
	for _, where := range []string{gpu0, gpu1, gpu2, gpu3, gpu4} {
		addPCI(tree, where, "0")
	}
	addPCI(tree, gpu5, "1")
	addPCI(tree, gpu6, "-1")
	return tree
}

func TestClass(t *testing.T) {
	t.Parallel()
	r := NewFS(exampleTree())
	for _, tc := range []struct {
		a, b string
		want topology.PCIe
	}{
		{gpu0, gpu0, topology.PCIeSelf}, {gpu0, gpu1, topology.PIX}, {gpu0, gpu2, topology.PXB}, {gpu1, gpu3, topology.PHB},
		{gpu0, gpu4, topology.NODE}, {gpu4, gpu5, topology.SYS}, {gpu5, gpu6, topology.SYS}, {gpu6, gpu3, topology.SYS},
	} {
		for _, pair := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			if got, err := r.Class(address(pair[0]), address(pair[1])); err != nil || got != tc.want {
				t.Errorf("%s and %s: got %s, %v, want %s", pair[0], pair[1], got, err, tc.want)
			}
		}
	}
	for _, bad := range []device.PCIAddress{"0000:77:00.0", "", "../../x", "00000000:03:00.0"} {
		if got, err := r.Class(address(gpu0), bad); err == nil {
			t.Errorf("%q: got %s, want an error", bad, got)
		}
	}
}

// TestClassOfTwins: two functions behind one bridge without a switch.
func TestClassOfTwins(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{}
	addPCI(tree, rootPort+"/0000:03:00.0", "0")
	addPCI(tree, rootPort+"/0000:03:00.1", "0")
	if got, err := NewFS(tree).Class("0000:03:00.0", "0000:03:00.1"); err != nil || got != topology.PIX {
		t.Errorf("got %s, %v, want PIX", got, err)
	}
}

func TestNUMANodeAndRoot(t *testing.T) {
	t.Parallel()
	tree := exampleTree()
	// As on Azure, where a device hangs below the hypervisor's own bus.
	tree["bus/pci/devices/abcd:00:00.0"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777,
		Data: []byte("../../../devices/LNXSYSTM:00/VMBUS:00/47505500/pciabcd:00/abcd:00:00.0")}
	r := NewFS(tree)
	if node, err := r.NUMANode(address(gpu5)); err != nil || node != 1 {
		t.Errorf("NUMA node: got %d, %v, want 1", node, err)
	}
	if node, err := r.NUMANode(address(gpu6)); err == nil {
		t.Errorf("NUMA node -1: got %d, want an error", node)
	}
	if node, err := r.NUMANode("abcd:00:00.0"); err == nil {
		t.Errorf("no NUMA file: got %d, want an error", node)
	}
	if root, err := r.PCIeRoot(address(gpu2)); err != nil || root != "pci0000:00" {
		t.Errorf("root: got %q, %v, want pci0000:00", root, err)
	}
	if root, err := r.PCIeRoot("abcd:00:00.0"); err == nil {
		t.Errorf("root below VMBUS: got %q, want an error", root)
	}
}

func TestNearestNIC(t *testing.T) {
	t.Parallel()
	nearest := func(tree fstest.MapFS, where string) string {
		t.Helper()
		got, err := NewFS(tree).NearestNIC(address(where))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	tree := exampleTree()
	if got := nearest(tree, gpu0); got != "" {
		t.Errorf("no cards: got %q", got)
	}
	addClass(tree, "net", gpu4[:strings.LastIndex(gpu4, "/")]+"/0000:42:00.0", "eth0")
	tree["class/net/lo"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("../../devices/virtual/net/lo")}
	tree["class/net/bonding_masters"] = &fstest.MapFile{}
	if got := nearest(tree, gpu4); got != "eth0" {
		t.Errorf("only an interface: got %q, want eth0", got)
	}
	nic := switchA + "/0000:02:0c.0/0000:05:00."
	addClass(tree, "infiniband", nic+"0", "mlx5_10")
	addClass(tree, "infiniband", nic+"1", "mlx5_2")
	addClass(tree, "infiniband", switchB+"/0000:09:04.0/0000:0b:00.0", "mlx5_30")
	addClass(tree, "infiniband", switchB+"/0000:09:04.0/0000:0b:00.1", "mlx5_0")
	tree["devices/"+switchB+"/0000:09:04.0/0000:0b:00.1/physfn"] = &fstest.MapFile{}
	for where, want := range map[string]string{
		gpu0: "mlx5_2",  // PIX twice, the first by number
		gpu2: "mlx5_30", // PIX; mlx5_0 is virtual
		gpu3: "mlx5_2",  // PHB from all
		gpu4: "mlx5_2",  // NODE
		gpu5: "",
	} {
		// Cards need a NUMA node to be on the same one.
		for _, card := range []string{nic + "0", nic + "1", switchB + "/0000:09:04.0/0000:0b:00.0"} {
			addPCI(tree, card, "0")
		}
		if got := nearest(tree, where); got != want {
			t.Errorf("%s: got %q, want %q", where, got, want)
		}
	}
}

func TestCompareNatural(t *testing.T) {
	t.Parallel()
	want := []string{"", "eth0", "eth00", "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_10a", "mlx5_a"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNatural)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewReadsARealTree(t *testing.T) {
	t.Parallel()
	r, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.NearestNIC("0000:03:00.0"); err == nil {
		t.Error("a device that is not there was found")
	}
}
