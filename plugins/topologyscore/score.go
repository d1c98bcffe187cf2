// SPDX-License-Identifier: Apache-2.0

package topologyscore

import (
	"slices"

	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology/placement"
)

// scoreOffers returns a score of 0 to 100 for each offer; 0 for nil.
//
// Where a pod has a prioritised list, a node that offers a combination which the
// pod likes more scores above every node that offers another: with R different
// combinations on offer, the r-th best (from 0) takes the band
//
//	(100·(R−1−r) + score of the node among those with this combination) / R
func scoreOffers(offers []*plan.Offer, tierPercent int, weights placement.ScoreWeights) []int64 {
	var preferences []int
	for _, offer := range offers {
		if offer != nil && !slices.Contains(preferences, offer.Preference) {
			preferences = append(preferences, offer.Preference)
		}
	}
	slices.Sort(preferences)
	scores := make([]int64, len(offers))
	bands := int64(len(preferences))
	for rank, preference := range preferences {
		below := placement.MaxNodeScore * (bands - 1 - int64(rank))
		for i, score := range scoreAlike(offers, preference, tierPercent, weights) {
			scores[i] = (below + score) / bands
		}
	}
	return scores
}

// scoreAlike scores the offers of one combination among each other, by index.
func scoreAlike(offers []*plan.Offer, preference, tierPercent int, weights placement.ScoreWeights) map[int]int64 {
	var candidates []placement.NodeCandidate
	var indices []int
	communicates := false
	for i, offer := range offers {
		if offer == nil || offer.Preference != preference {
			continue
		}
		candidates = append(candidates, placement.NodeCandidate{
			Quality: offer.Quality, DeltaV: offer.DeltaV, AllocatedPermille: offer.AllocatedPermille,
		})
		indices = append(indices, i)
		communicates = communicates || offer.Communicates
	}
	scores := make(map[int]int64, len(indices))
	for k, score := range placement.ScoreNodesWeighted(candidates, communicates, tierPercent, weights) {
		scores[indices[k]] = score
	}
	return scores
}
