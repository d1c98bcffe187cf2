// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
)

// Numbers are the numbers by which the recording, and so the people who use it, know the GPUs: ascending, by position. They have
// gaps where a GPU fell off the bus.
type Numbers []int

// NumbersOf returns the numbers of a recording.
func NumbersOf(r *capture.Recorded) Numbers {
	out := make(Numbers, len(r.GPUs))
	for i, g := range r.GPUs {
		out[i] = g.Index
	}
	return out
}

// Of returns the numbers of the GPUs of a set in ascending order. A set without numbers has those of its positions.
func (n Numbers) Of(s topology.Mask) []int {
	out := s.Positions()
	for i, position := range out {
		if position < len(n) {
			out[i] = n[position]
		}
	}
	return out
}

// List prints a set as "0,1,4-7": runs of three and more as a range.
func (n Numbers) List(s topology.Mask) string {
	var items []string
	numbers := n.Of(s)
	for from := 0; from < len(numbers); {
		to := from
		for to+1 < len(numbers) && numbers[to+1] == numbers[to]+1 {
			to++
		}
		if to < from+2 {
			to = from
			items = append(items, strconv.Itoa(numbers[from]))
		} else {
			items = append(items, strconv.Itoa(numbers[from])+"-"+strconv.Itoa(numbers[to]))
		}
		from = to + 1
	}
	return strings.Join(items, ",")
}

// Parse reads what List prints, with or without braces: numbers and ranges, separated by commas. The ends of a range must be there,
// numbers between them need not. An empty list is the empty set.
func (n Numbers) Parse(text string) (topology.Mask, error) {
	body := strings.TrimSpace(text)
	if inside, ok := strings.CutPrefix(body, "{"); ok {
		if body, ok = strings.CutSuffix(inside, "}"); !ok {
			return 0, fmt.Errorf("%q has no closing brace", text)
		}
		body = strings.TrimSpace(body)
	}
	if body == "" {
		return 0, nil
	}
	var out topology.Mask
	for item := range strings.SplitSeq(body, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err := n.position(first)
		if err != nil {
			return 0, err
		}
		to, err := n.position(last)
		if err != nil {
			return 0, err
		}
		if from > to {
			return 0, fmt.Errorf("range %q runs backwards", strings.TrimSpace(item))
		}
		for i := from; i <= to; i++ {
			out = out.With(i)
		}
	}
	return out, nil
}

func (n Numbers) position(text string) (int, error) {
	text = strings.TrimSpace(text)
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not the number of a GPU", text)
	}
	at, ok := slices.BinarySearch(n, int(number))
	if !ok {
		return 0, fmt.Errorf("GPU %d is not on this machine, which has the GPUs %s", number, n.List(topology.FullMask(len(n))))
	}
	return at, nil
}
