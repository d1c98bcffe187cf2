// SPDX-License-Identifier: Apache-2.0

package quality_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

func recorded(t testing.TB) []*capture.Recorded {
	t.Helper()
	all, err := topotest.All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func classOf(t testing.TB, m *topology.Machine) *quality.Class {
	t.Helper()
	c, err := quality.NewClass(m, quality.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kindOfClass translates the reference's class.
func kindOfClass(p topology.PCIe) quality.LinkKind { return quality.NVLink + quality.LinkKind(p) }

func TestOracleTable(t *testing.T) {
	t.Parallel()
	for _, r := range recorded(t) {
		m := r.Machine
		c := classOf(t, m)
		want, ok := oracle[m.Name]
		if !ok {
			t.Errorf("%s: no oracle", m.Name)
		}
		got := map[int]map[string]int{}
		for k := range want {
			got[k] = map[string]int{}
			for _, s := range topotest.Subsets(topology.FullMask(m.N()), k) {
				q := c.Of(s)
				label := q.Bottleneck.String()
				if q.HasNVLink() {
					label = fmt.Sprintf("NV%d", bestThinnestHop(m, s))
				}
				got[k][label]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: sets by bottleneck (-want +got):\n%s", m.Name, diff)
		}
	}
}

// bestThinnestHop returns the largest number of links that the thinnest hop of a
// ring of NVLinks can have.
func bestThinnestHop(m *topology.Machine, s topology.Mask) int {
	best := 0
	topotest.Orders(s, func(order []int) {
		thinnest := 255
		for i := range order {
			thinnest = min(thinnest, int(m.NVLinks[order[i]][order[(i+1)%len(order)]]))
		}
		best = max(best, thinnest)
	})
	return best
}

// TestEqualsReference compares every set of every recorded machine up to eight
// GPUs, and of random machines, with exhaustive search.
func TestEqualsReference(t *testing.T) {
	t.Parallel()
	for _, r := range recorded(t) {
		if r.Machine.N() <= 8 {
			checkAgainst(t, topotest.NewReference(r.Machine))
		}
	}
	for shape := range topotest.Shapes {
		for seed := range uint64(16) {
			ref := topotest.NewReference(topotest.Random(shape, 1+int(seed)%8, seed))
			ref.ClosedForm = true // the closed form is checked in TestClosedForm
			checkAgainst(t, ref)
		}
	}
}

func checkAgainst(t *testing.T, ref *topotest.Reference) {
	t.Helper()
	m := ref.M
	c := classOf(t, m)
	sameGen := true
	for _, g := range m.GPUs {
		sameGen = sameGen && g.PCIeGen == m.GPUs[0].PCIeGen
	}
	for s := topology.Mask(0); s <= topology.FullMask(m.N()); s++ {
		got, want := c.Of(s), ref.Quality(s)
		if got.Rings != want.Rings || got.MBps != want.MBps {
			t.Errorf("%s %s: got %+v, want %+v", m.Name, s, got, want)
			return
		}
		if s.Count() >= 2 && got.Reach != kindOfClass(want.Reach) {
			t.Errorf("%s %s: reach %s, want %s", m.Name, s, got.Reach, want.Reach)
		}
		if s.Count() >= 2 && sameGen && got.Bottleneck != kindOfClass(want.Class) {
			t.Errorf("%s %s: bottleneck %s, want %s", m.Name, s, got.Bottleneck, want.Class)
		}
		if s != 0 && c.Value(s) != ref.Value(s) {
			t.Errorf("%s %s: value %d, want %d", m.Name, s, c.Value(s), ref.Value(s))
		}
		for k := 1; k <= m.N(); k++ {
			if got, want := c.Pack(k, s), ref.Pack(k, s); got != want {
				t.Errorf("%s: Pack(%d, %s) = %d, want %d", m.Name, k, s, got, want)
			}
		}
	}
}

// TestClosedForm: the closed form equals exact ring packing on every recorded
// machine; the meshes of switched machines are cut to two links per pair and six GPUs.
func TestClosedForm(t *testing.T) {
	t.Parallel()
	for _, r := range recorded(t) {
		m, largest := r.Machine.Clone(), r.Machine.N()
		if m.N() > 8 {
			continue
		}
		if m.Switched {
			thin(m)
			largest = 6
		}
		c := classOf(t, m)
		for s := topology.Mask(1); s <= topology.FullMask(m.N()); s++ {
			if s.Count() > largest {
				continue
			}
			if got, want := c.Of(s).Rings, topotest.MaxRings(m.NVLinks, s); got != want {
				t.Errorf("%s %s: %d rings, exact packing %d", m.Name, s, got, want)
			}
		}
	}
}

// thin leaves at most two links per pair.
func thin(m *topology.Machine) {
	for _, row := range m.NVLinks {
		for j := range row {
			row[j] = min(row[j], 2)
		}
	}
}

// TestClosedFormOnMultigraphs: on random graphs the closed form is never too small, and
// too large exactly as often as docs/objective.md says.
func TestClosedFormOnMultigraphs(t *testing.T) {
	t.Parallel()
	over, all := 0, 0
	for seed := range uint64(150) {
		m := topotest.Random(topotest.AnyLinks, 6, seed)
		c := classOf(t, m)
		for s := topology.Mask(1); s <= topology.FullMask(6); s++ {
			got, exact := c.Of(s).Rings, topotest.MaxRings(m.NVLinks, s)
			if got < exact || (got > 0) != (exact > 0) {
				t.Errorf("%s %s: %d rings, exact packing %d", m.Name, s, got, exact)
			}
			all += min(got, 1)
			over += min(got-exact, 1)
		}
	}
	text, err := os.ReadFile("../../docs/objective.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d of %d sets with a ring", over, all); !strings.Contains(string(text), want) {
		t.Errorf("docs/objective.md does not say %q", want)
	}
}

// TestDGX1VRings pins the numbers that people know.
func TestDGX1VRings(t *testing.T) {
	t.Parallel()
	r, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	c := classOf(t, r.Machine)
	for _, tc := range []struct {
		gpus  string
		rings int
	}{{"0,3", 2}, {"0,1", 1}, {"0,5", 0}, {"0,1,2", 1}, {"0,3,4", 0}, {"0-3", 2}, {"0,3,4,7", 1}, {"0-7", 3}} {
		s, err := topology.ParseMask(tc.gpus, 8)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Of(s).Rings; got != tc.rings {
			t.Errorf("%s: %d rings, want %d", s, got, tc.rings)
		}
	}
}

// TestSwitchedIsCapped checks that a switched machine never promises more than the
// links a GPU has.
func TestSwitchedIsCapped(t *testing.T) {
	t.Parallel()
	r, err := topotest.Load("hgxh100_8x_numa2")
	if err != nil {
		t.Fatal(err)
	}
	c := classOf(t, r.Machine)
	for k := 2; k <= 8; k++ {
		if got, want := c.Of(topology.FullMask(k)).MBps, topology.MBps(18*26_562); got != want {
			t.Errorf("%d GPUs: %d MBps, want %d", k, got, want)
		}
	}
}

// TestNVLinkByKind: one link of the first generation beats a faster PCIe switch.
func TestNVLinkByKind(t *testing.T) {
	t.Parallel()
	m := topology.New("kind", 4)
	for i := range m.GPUs {
		m.GPUs[i].NVLinkMBps, m.GPUs[i].PCIeGen = 20_000, 5
	}
	set := func(i, j int, links uint8, class topology.PCIe) {
		m.NVLinks[i][j], m.NVLinks[j][i] = links, links
		m.PCIe[i][j], m.PCIe[j][i] = class, class
	}
	set(0, 1, 1, topology.SYS)
	set(2, 3, 0, topology.PIX)
	c := classOf(t, m)
	nv, pix := topology.MaskOf(0, 1), topology.MaskOf(2, 3)
	if c.Of(nv).MBps >= c.Of(pix).MBps {
		t.Fatalf("the trap is gone: %v, %v", c.Of(nv), c.Of(pix))
	}
	if quality.Compare(c.Of(nv), c.Of(pix)) <= 0 || c.Rank(nv) >= c.Rank(pix) || c.Value(nv) <= c.Value(pix) {
		t.Errorf("NVLink %v (value %d) is not better than PIX %v (value %d)", c.Of(nv), c.Value(nv), c.Of(pix), c.Value(pix))
	}
	if quality.InTier(c.Of(nv), c.Of(pix), 99) {
		t.Error("NVLink and PIX share a tier")
	}
}

// TestPermutation: renaming the GPUs renames the answers.
func TestPermutation(t *testing.T) {
	t.Parallel()
	for shape := range topotest.Shapes {
		m := topotest.Random(shape, 9, 77)
		order := []int{3, 8, 1, 0, 7, 5, 2, 6, 4}
		c, p := classOf(t, m), classOf(t, m.Permute(order))
		for s := topology.Mask(0); s <= topology.FullMask(9); s++ {
			var renamed topology.Mask
			for i := range s.All() {
				renamed = renamed.With(order[i])
			}
			if p.Of(s) != c.Of(renamed) {
				t.Errorf("%s: %s is %v, but %s was %v", m.Name, s, p.Of(s), renamed, c.Of(renamed))
			}
			if p.Pack(3, s) != c.Pack(3, renamed) {
				t.Errorf("%s: Pack(3, %s) = %d, but %d before", m.Name, s, p.Pack(3, s), c.Pack(3, renamed))
			}
		}
	}
}

// TestSparseEqualsDense: a machine of more than 16 GPUs gives the same qualities as
// the part of it that is asked about.
func TestSparseEqualsDense(t *testing.T) {
	t.Parallel()
	for shape := range topotest.Shapes {
		m := topotest.Random(shape, 20, 5)
		m.Switched = false // the ports of a switched GPU depend on all its peers
		big := classOf(t, m)
		if big.Exact() {
			t.Fatal("a machine of 20 GPUs claims to be exact")
		}
		part := topology.MaskOf(1, 3, 4, 6, 9, 12, 15, 19)
		small := classOf(t, m.Sub(part))
		members := part.Positions()
		for s := topology.Mask(0); s <= topology.FullMask(8); s++ {
			var asked topology.Mask
			for i := range s.All() {
				asked = asked.With(members[i])
			}
			if got, want := big.Of(asked), small.Of(s); got != want {
				t.Errorf("shape %d %s: %+v, want %+v", shape, asked, got, want)
			}
			if got, want := big.PairMBps(asked), small.PairMBps(s); got != want {
				t.Errorf("shape %d %s: pairs %d, want %d", shape, asked, got, want)
			}
		}
	}
}

// TestLargeMachines: sets of more than 16 GPUs and packings of large machines.
func TestLargeMachines(t *testing.T) {
	t.Parallel()
	ring := topology.New("ring of 24", 24)
	fabric := topology.New("fabric of 24", 24)
	fabric.Switched = true
	for i := range 24 {
		next := (i + 1) % 24
		ring.NVLinks[i][next], ring.NVLinks[next][i] = 2, 2
		for j := range 24 {
			if i != j {
				fabric.NVLinks[i][j] = 18
			}
		}
	}
	all := topology.FullMask(24)
	if q := classOf(t, ring).Of(all); q.Rings != 2 {
		t.Errorf("ring: %+v, want 2 rings", q)
	}
	ring.NVLinks[0][1], ring.NVLinks[1][0] = 0, 0
	if q := classOf(t, ring).Of(all); q.Rings != 0 || q.Bottleneck != quality.SYS {
		t.Errorf("broken ring: %+v, want no ring", q)
	}
	c := classOf(t, fabric)
	want := topology.MBps(18) * topology.DefaultNVLinkMBps
	if q := c.Of(all); q.MBps != want || q.Bottleneck != quality.NVLink {
		t.Errorf("fabric: %+v, want %d MBps", q, want)
	}
	if got := c.Pack(8, all); got != 3*int64(want) {
		t.Errorf("fabric: Pack(8) = %d, want %d", got, 3*int64(want))
	}
}

// TestConcurrentUse asks one class from many goroutines, tables not yet built.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	cache := quality.NewCache(2, quality.Options{})
	m := topotest.Random(topotest.Quads, 8, 3)
	want := classOf(t, m)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			c, err := cache.Get(m)
			if err != nil {
				t.Error(err)
				return
			}
			for s := range topology.Mask(256) {
				k := 1 + (int(s)+w)%8
				if c.Of(s) != want.Of(s) || c.Pack(k, s) != want.Pack(k, s) || c.Local().Of(s) != want.Local().Of(s) {
					t.Errorf("goroutine %d: different answer for %s", w, s)
				}
			}
		})
	}
	wg.Wait()
}

func TestCache(t *testing.T) {
	t.Parallel()
	cache := quality.NewCache(2, quality.Options{})
	get := func(n int, name string) *quality.Class {
		t.Helper()
		c, err := cache.Get(topology.New(name, n))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := get(2, "a")
	if get(2, "b") != a {
		t.Error("two machines that differ in their name alone do not share a class")
	}
	get(3, "")
	get(2, "")
	get(4, "") // drops 3, which was not used for the longest time
	if cache.Len() != 2 {
		t.Errorf("%d classes, want 2", cache.Len())
	}
	if get(2, "") != a {
		t.Error("the class in use was dropped")
	}
	if _, err := cache.Get(&topology.Machine{}); err == nil {
		t.Error("a machine without GPUs got a class")
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	w := topology.DefaultWeights()
	w[0][topology.SYS] = 77
	c, err := quality.NewClass(topology.New("", 2), quality.Options{Weights: &w})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Of(3).MBps; got != 77 {
		t.Errorf("%d MBps, want the overridden 77", got)
	}
	w[0][topology.SYS] = 0
	if _, err := quality.NewClass(topology.New("", 2), quality.Options{Weights: &w}); err == nil {
		t.Error("a weight of zero was accepted")
	}
}

func TestQualityText(t *testing.T) {
	t.Parallel()
	for want, q := range map[string]quality.Quality{
		"single GPU":                                {},
		"1 ring, 25.8 GB/s over NVLink":             {Rings: 1, MBps: 25_781, Bottleneck: quality.NVLink},
		"2 rings, 51.6 GB/s over NVLink":            {Rings: 2, MBps: 51_562, Bottleneck: quality.NVLink},
		"no NVLink ring, 12.0 GB/s over PIX":        {MBps: 12_000, Bottleneck: quality.PIX},
		"no NVLink ring, 0.0 GB/s over LinkKind(9)": {Bottleneck: 9},
	} {
		if got := q.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSameTier(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b    topology.MBps
		percent int
		want    bool
	}{{100, 90, 10, true}, {90, 100, 10, true}, {100, 89, 10, false}, {100, 100, 0, true}, {100, 99, 0, false}, {0, 0, 10, true}, {4_000_000_000, 3_600_000_000, 10, true}} {
		if got := quality.SameTier(tc.a, tc.b, tc.percent); got != tc.want {
			t.Errorf("SameTier(%d, %d, %d) = %v", tc.a, tc.b, tc.percent, got)
		}
	}
}

// TestSparseSetsOfTwelve: a machine that is too large for tables says of a set what
// the tables of that set alone say.
func TestSparseSetsOfTwelve(t *testing.T) {
	t.Parallel()
	for shape := range topotest.Shapes {
		for seed := range uint64(3) {
			m := topotest.Random(shape, 18, seed)
			m.Switched = false
			big := classOf(t, m)
			for from := range 6 {
				set := (topology.FullMask(13) &^ 2) << from
				small := classOf(t, m.Sub(set))
				if got, want := big.Of(set), small.Of(topology.FullMask(small.N())); got != want {
					t.Errorf("shape %d, seed %d, %s: %+v, want %+v", shape, seed, set, got, want)
				}
			}
		}
	}
}
