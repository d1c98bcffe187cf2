// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

var (
	oneRing  = quality.Quality{Rings: 1, MBps: 25_000, Bottleneck: quality.NVLink}
	twoRings = quality.Quality{Rings: 2, MBps: 50_000, Bottleneck: quality.NVLink}
	pcie     = quality.Quality{MBps: 60_000, Bottleneck: quality.PIX}
)

func TestRecordSurvivesClones(t *testing.T) {
	t.Parallel()
	state := framework.NewCycleState()
	if Read(state) != nil {
		t.Error("an empty state has a record")
	}
	record := NewRecord(api.DefaultScoreWeights(), 10)
	Write(state, record)
	if Read(state) != record || Read(state.Clone()) != record {
		t.Error("the record is not the one that was written")
	}
}

func TestRecordKeepsTheLastVerdict(t *testing.T) {
	t.Parallel()
	record := NewRecord(api.DefaultScoreWeights(), 10)
	record.SetOffer("a", &Offer{BestOfNode: oneRing})
	record.SetOffer("b", &Offer{BestOfNode: twoRings})
	record.SetOffer("c", &Offer{BestOfNode: pcie})
	if got := record.BestQuality(); got != twoRings {
		t.Errorf("best quality = %v, want %v", got, twoRings)
	}
	record.SetRefusal("b", &Refusal{Wanted: "x"})
	if record.Offer("b") != nil || record.BestQuality() != oneRing {
		t.Error("a refusal does not take the offer back")
	}
	record.SetOffer("b", &Offer{BestOfNode: pcie})
	if wanted, _, _ := record.Refusals(); wanted != "" {
		t.Errorf("refused %q after an offer", wanted)
	}
}

func TestRefusalsNameTheBest(t *testing.T) {
	t.Parallel()
	alternative := func(q quality.Quality, gpus ...int) *Alternative {
		return &Alternative{GPUs: topology.MaskOf(gpus...), Quality: q}
	}
	record := NewRecord(api.DefaultScoreWeights(), 10)
	record.SetRefusal("d", &Refusal{Wanted: "4 GPUs", BestNow: alternative(oneRing, 4), BestWhenFree: alternative(oneRing, 5)})
	record.SetRefusal("c", &Refusal{Wanted: "4 GPUs", BestNow: alternative(oneRing, 3), BestWhenFree: alternative(twoRings, 3)})
	record.SetRefusal("a", &Refusal{Wanted: "4 GPUs", BestNow: alternative(pcie, 1)})
	record.SetRefusal("b", &Refusal{})
	wanted, now, whenFree := record.Refusals()
	if wanted != "4 GPUs" {
		t.Errorf("wanted = %q", wanted)
	}
	// NVLink beats a nominally faster PCIe; between equal ones the name decides.
	if now.Node != "c" || now.GPUs != topology.MaskOf(3) || whenFree.Node != "c" {
		t.Errorf("best now on %q %s, when free on %q, want both on c", now.Node, now.GPUs, whenFree.Node)
	}
}

func TestRecordInParallel(t *testing.T) {
	t.Parallel()
	record := NewRecord(api.DefaultScoreWeights(), 10)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprintf("node-%d", i)
			record.SetOffer(name, &Offer{BestOfNode: oneRing})
			if record.Offer(name) == nil || record.Empty() || record.BestQuality() != oneRing {
				t.Errorf("%s lost its offer", name)
			}
		})
	}
	wg.Wait()
}

func TestMetricsAreRegistered(t *testing.T) {
	t.Parallel()
	RegisterMetrics()
	RegisterMetrics()
	Plans.WithLabelValues(ResultPlanned).Add(0)
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, family := range families {
		found[family.GetName()] = true
	}
	for _, name := range []string{
		"topodra_plans_total", "topodra_plan_duration_seconds", "topodra_plan_memo_hits_total",
		"topodra_oracle_calls_total", "topodra_plan_mismatches_total",
	} {
		if !found[name] {
			t.Errorf("metric %q is not registered", name)
		}
	}
}
