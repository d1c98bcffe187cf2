// SPDX-License-Identifier: Apache-2.0

package study

import "math"

// Estimate is a mean over seeds with the half width of its 95 % confidence interval.
type Estimate struct {
	Mean, Half float64
	// Count is the number of seeds. With one seed, Half is 0 and says nothing.
	Count int
}

// quantiles are those of Student's t distribution for two-sided 95 % intervals, by
// degrees of freedom from 1 on; beyond, the normal one serves.
var quantiles = []float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
	2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

const normalQuantile = 1.960

// EstimateOf sums up values of different seeds, taken as independent and normal.
func EstimateOf(values []float64) Estimate {
	n := len(values)
	if n == 0 {
		return Estimate{}
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(n)
	if n == 1 {
		return Estimate{Mean: mean, Count: 1}
	}
	squares := 0.0
	for _, v := range values {
		squares += float64((v - mean) * (v - mean))
	}
	t := normalQuantile
	if n-2 < len(quantiles) {
		t = quantiles[n-2]
	}
	return Estimate{Mean: mean, Half: t * math.Sqrt(squares/float64(n-1)/float64(n)), Count: n}
}
