// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// random makes claims of one to three GPUs until few are left, each with up to two pods.
func random(rng *rand.Rand) (claims []resourceapi.ResourceClaim, gpus []topology.Mask, pods []int) {
	order := rng.Perm(8)
	for len(order) > rng.IntN(3) {
		n := min(len(order), 1+rng.IntN(3))
		var names, users []string
		var mask topology.Mask
		for _, g := range order[:n] {
			names = append(names, fmt.Sprintf("g%d", g))
			mask = mask.With(g)
		}
		for p := range rng.IntN(3) {
			users = append(users, fmt.Sprintf("p%d-%d", len(claims), p))
		}
		order = order[n:]
		claims = append(claims, clitest.Claim(fmt.Sprintf("c%d", len(claims)), int64(n), clitest.Allocated("cube", strings.Join(names, ","), 1, users...)))
		gpus, pods = append(gpus, mask), append(pods, len(users))
	}
	return claims, gpus, pods
}

// TestSmallest compares the search with all subsets, judged by the reference implementation of quality.
func TestSmallest(t *testing.T) {
	t.Parallel()
	recorded, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	reference := topotest.NewReference(recorded.Machine)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		claims, gpus, pods := random(rng)
		want := 2 + rng.IntN(5)
		s := world(t, clitest.Pod("job", "", "job"), append(claims, clitest.Claim("job", int64(want), clitest.Required(api.LevelNVLink)))...)
		s.Slices = s.Slices[:1]
		p := explained(t, s).Pending

		serves := func(gone int) bool {
			free := topology.FullMask(8)
			for i := range gpus {
				if gone>>i&1 == 0 {
					free &^= gpus[i]
				}
			}
			for _, set := range topotest.Subsets(free, want) {
				if reference.Quality(set).Rings > 0 {
					return true
				}
			}
			return false
		}
		if serves(0) {
			if len(p.Free) > 0 {
				t.Errorf("seed %d: something is to be freed although %d GPUs are free", seed, want)
			}
			continue
		}
		cost := func(gone int) (claims, users, memory int) {
			for i := range gpus {
				if gone>>i&1 == 1 {
					users += pods[i]
					memory += gpus[i].Count()
				}
			}
			return bits.OnesCount(uint(gone)), users, memory
		}
		best := -1
		for gone := 1; gone < 1<<len(gpus); gone++ {
			if !serves(gone) {
				continue
			}
			if best < 0 || less(cost, gone, best) {
				best = gone
			}
		}
		var wanted []string
		for i := range claims {
			if best >= 0 && best>>i&1 == 1 {
				wanted = append(wanted, claims[i].Name)
			}
		}
		var got []string
		if len(p.Free) > 0 {
			for _, c := range p.Free[0].Claims {
				got = append(got, c.Name)
			}
			if !p.Free[0].Smallest {
				t.Errorf("seed %d: the search says that it was cut short", seed)
			}
		}
		if strings.Join(got, ",") != strings.Join(wanted, ",") {
			t.Errorf("seed %d: %d GPUs, held %v with %v pods: freed %v, want %v", seed, want, gpus, pods, got, wanted)
		}
	}
}

// less compares by the rule; names decide last, which here is the order of the lowest claims.
func less(cost func(int) (int, int, int), a, b int) bool {
	ac, au, am := cost(a)
	bc, bu, bm := cost(b)
	switch {
	case ac != bc:
		return ac < bc
	case au != bu:
		return au < bu
	case am != bm:
		return am < bm
	}
	differ := a ^ b
	return a>>bits.TrailingZeros(uint(differ))&1 == 1
}

// TestCutShort: when there is no time, the list still frees enough and nothing in it can be left out.
func TestCutShort(t *testing.T) {
	t.Parallel()
	planner, err := fit.New()
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		claims, gpus, _ := random(rng)
		snapshot := world(t, clitest.Pod("job", "", "job"), append(claims, clitest.Claim("job", 6+int64(rng.IntN(3))))...)
		snapshot.Slices = snapshot.Slices[:1]
		live, err := livestate.Build(snapshot.Slices, snapshot.Claims)
		if err != nil {
			t.Fatal(err)
		}
		x := &explainer{Snapshot: snapshot, planner: planner, live: live, world: worldOf(snapshot)}
		x.claims = ask.Claims(snapshot.Pod, x.world)
		choices, _ := ask.Choices(snapshot.Pod, x.claims, x.world.Classes)
		s := newSearch(x)
		s.perNode = 1 // too few for any size
		if _, err := x.refusal(t.Context(), "cube", choices, s); err != nil {
			t.Fatal(err)
		}
		var p Pending
		if err := s.run(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
		want := choices[0][0].Count
		freed := func(without int) int {
			n := topology.FullMask(8)
			for i := range claims {
				gone := slices.ContainsFunc(p.Free[0].Claims, func(c HeldClaim) bool { return c.Name == claims[i].Name })
				if !gone || i == without {
					n &^= gpus[i]
				}
			}
			return n.Count()
		}
		switch {
		case len(p.Free) != 1 || p.Free[0].Smallest && len(claims) > 1:
			t.Errorf("seed %d: %+v, want one list that admits to be cut short", seed, p.Free)
			continue
		case freed(-1) < want:
			t.Errorf("seed %d: %v frees %d of %d GPUs", seed, p.Free[0].Claims, freed(-1), want)
		}
		for i := range claims {
			if slices.ContainsFunc(p.Free[0].Claims, func(c HeldClaim) bool { return c.Name == claims[i].Name }) && freed(i) >= want {
				t.Errorf("seed %d: claim %q could be left out of %v", seed, claims[i].Name, p.Free[0].Claims)
			}
		}
	}
}

// TestEachSubset visits every subset of a size once.
func TestEachSubset(t *testing.T) {
	t.Parallel()
	for n := range 7 {
		for size := 1; size <= n; size++ {
			seen := map[string]bool{}
			_ = eachSubset(n, size, func(s subset) (bool, error) {
				seen[fmt.Sprint(s)] = true
				return true, nil
			})
			want := 0
			for m := range 1 << n {
				if bits.OnesCount(uint(m)) == size {
					want++
				}
			}
			if len(seen) != want {
				t.Errorf("%d of %d: %d subsets, want %d", size, n, len(seen), want)
			}
		}
	}
}
