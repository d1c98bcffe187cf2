// SPDX-License-Identifier: Apache-2.0

package topologyscore

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// nvlink and sys are the qualities of two tiers.
var (
	nvlink = quality.Quality{Rings: 2, MBps: 50_000, Bottleneck: quality.NVLink, Reach: quality.NVLink}
	sys    = quality.Quality{MBps: 6_000, Bottleneck: quality.SYS, Reach: quality.SYS}
)

func TestScoreOffers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		offers []*plan.Offer
		want   []int64
	}{
		"nothing":  {},
		"no offer": {offers: []*plan.Offer{nil}, want: []int64{0}},
		"the tier decides": {
			// 60 + 30·0.5 + 10·(1−0/8); the other tier has 20 points, 20·(3·1+0)/4.
			offers: []*plan.Offer{
				{Quality: nvlink, Communicates: true, AllocatedPermille: 500},
				{Quality: sys, Communicates: true, AllocatedPermille: 1000, DeltaV: 8}, nil,
			},
			want: []int64{85, 15, 0},
		},
		"a single GPU: how full, then what it costs": {
			// 60·0.9 + 40·(1−4/8) and 60·0.1 + 40·(1−8/8).
			offers: []*plan.Offer{{Quality: sys, AllocatedPermille: 900, DeltaV: 4}, {Quality: nvlink, AllocatedPermille: 100, DeltaV: 8}},
			want:   []int64{74, 6},
		},
		"a preferred alternative beats a better set": {
			// Two bands of 50: (100+20·…)/2 and (0+100)/2.
			offers: []*plan.Offer{
				{Quality: sys, Communicates: true, Preference: 1},
				{Quality: nvlink, Communicates: true, AllocatedPermille: 1000, Preference: 3},
			},
			want: []int64{85, 50},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := scoreOffers(tc.offers, quality.DefaultTierPercent, placement.DefaultScoreWeights())
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
			for _, score := range got {
				if score < 0 || score > fwk.MaxScore {
					t.Errorf("score %d is out of range", score)
				}
			}
		})
	}
}

// TestScoreOffersWithoutAlternatives shows that the bands vanish where no pod has
// a choice.
func TestScoreOffersWithoutAlternatives(t *testing.T) {
	t.Parallel()
	offers := []*plan.Offer{{Quality: nvlink, Communicates: true, DeltaV: 3, AllocatedPermille: 250}, {Quality: sys, Communicates: true, DeltaV: 1}}
	want := placement.ScoreNodes([]placement.NodeCandidate{
		{Quality: nvlink, DeltaV: 3, AllocatedPermille: 250}, {Quality: sys, DeltaV: 1},
	}, true, quality.DefaultTierPercent)
	if diff := cmp.Diff(want, scoreOffers(offers, quality.DefaultTierPercent, weightsOf(api.DefaultScoreWeights()))); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

// TestWeights checks each formula with weights whose effect is easy to see.
func TestWeights(t *testing.T) {
	t.Parallel()
	offers := []*plan.Offer{
		{Quality: nvlink, Communicates: true, AllocatedPermille: 0, DeltaV: 10},
		{Quality: sys, Communicates: true, AllocatedPermille: 1000, DeltaV: 5},
	}
	lone := []*plan.Offer{{AllocatedPermille: 0, DeltaV: 10}, {AllocatedPermille: 1000, DeltaV: 5}}
	for name, tc := range map[string]struct {
		weights api.ScoreWeights
		offers  []*plan.Offer
		want    []int64
	}{
		"quality alone":                        {api.ScoreWeights{Quality: 7}, offers, []int64{100, 0}},
		"allocated alone":                      {api.ScoreWeights{Allocated: 7}, offers, []int64{0, 100}},
		"remaining alone":                      {api.ScoreWeights{Remaining: 7}, offers, []int64{0, 50}},
		"quality and allocated":                {api.ScoreWeights{Quality: 1, Allocated: 1}, offers, []int64{50, 16}},
		"quality alone, without communication": {api.ScoreWeights{Quality: 7}, lone, []int64{0, 0}},
		"both others, without communication":   {api.ScoreWeights{Allocated: 2, Remaining: 1}, lone, []int64{0, 75}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, scoreOffers(tc.offers, quality.DefaultTierPercent, weightsOf(tc.weights))); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPluginReadsTheRecord(t *testing.T) {
	t.Parallel()
	plugin := &Plugin{}
	state := framework.NewCycleState()
	if status := plugin.PreScore(t.Context(), state, nil, nil); !status.IsSkip() {
		t.Errorf("PreScore without a record = %v, want Skip", status)
	}
	record := plan.NewRecord(api.DefaultScoreWeights(), quality.DefaultTierPercent)
	plan.Write(state, record)
	if status := plugin.PreScore(t.Context(), state, nil, nil); !status.IsSkip() {
		t.Errorf("PreScore without offers = %v, want Skip", status)
	}
	record.SetOffer("a", &plan.Offer{Quality: nvlink, Communicates: true})
	record.SetOffer("b", &plan.Offer{Quality: sys, Communicates: true})
	if status := plugin.PreScore(t.Context(), state, nil, nil); !status.IsSuccess() {
		t.Errorf("PreScore = %v", status)
	}
	scores := fwk.NodeScoreList{{Name: "b", Score: 1}, {Name: "c"}, {Name: "a", Score: 1}}
	if status := plugin.NormalizeScore(t.Context(), state, nil, scores); !status.IsSuccess() {
		t.Errorf("NormalizeScore = %v", status)
	}
	want := fwk.NodeScoreList{{Name: "b", Score: 5}, {Name: "c"}, {Name: "a", Score: 70}}
	if diff := cmp.Diff(want, scores); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

func TestNewRefusesArguments(t *testing.T) {
	t.Parallel()
	if _, err := New(t.Context(), &runtime.Unknown{}, nil); err == nil {
		t.Error("arguments are accepted, although nothing reads them")
	}
	if fragments, status := (&Plugin{}).SignPod(t.Context(), nil); fragments != nil || !status.IsSuccess() {
		t.Errorf("SignPod = %v, %v: pods without claims could not be batched", fragments, status)
	}
}
