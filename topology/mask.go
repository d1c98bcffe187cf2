// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

const (
	// MaxGPUs is the largest machine that can be described: attributes of a
	// device carry one character per GPU and are at most 64 bytes long.
	MaxGPUs = 64
	// MaxExactGPUs is the largest machine on which every search is exact. The
	// tables behind it grow with 2^n.
	MaxExactGPUs = 16
)

// Mask is a set of GPUs of one machine: bit i stands for the GPU at position i.
type Mask uint64

// FullMask returns the set of the first n GPUs. n is cut to 0..[MaxGPUs].
func FullMask(n int) Mask {
	if n <= 0 {
		return 0
	}
	if n >= MaxGPUs {
		return ^Mask(0)
	}
	return Mask(1)<<n - 1
}

// MaskOf returns the set of the given positions. Positions outside
// 0..[MaxGPUs]-1 are ignored.
func MaskOf(positions ...int) Mask {
	var m Mask
	for _, p := range positions {
		m = m.With(p)
	}
	return m
}

// Has reports whether position i is in the set.
func (m Mask) Has(i int) bool { return i >= 0 && i < MaxGPUs && m>>i&1 == 1 }

// With returns the set with position i added.
func (m Mask) With(i int) Mask {
	if i < 0 || i >= MaxGPUs {
		return m
	}
	return m | 1<<i
}

// Without returns the set with position i removed.
func (m Mask) Without(i int) Mask {
	if i < 0 || i >= MaxGPUs {
		return m
	}
	return m &^ (1 << i)
}

// Count returns how many GPUs are in the set.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Lowest returns the smallest position of the set, or -1 when it is empty.
func (m Mask) Lowest() int {
	if m == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(m))
}

// Highest returns the largest position of the set, or -1 when it is empty.
func (m Mask) Highest() int { return bits.Len64(uint64(m)) - 1 }

// SubsetOf reports whether every GPU of m is also in other.
func (m Mask) SubsetOf(other Mask) bool { return m&^other == 0 }

// All yields the positions of the set in ascending order.
func (m Mask) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := m; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(uint64(rest))) {
				return
			}
		}
	}
}

// Positions returns the positions of the set in ascending order.
func (m Mask) Positions() []int {
	out := make([]int, 0, m.Count())
	for i := range m.All() {
		out = append(out, i)
	}
	return out
}

// String prints the set as "{0,1,4-7}": runs of three and more as a range.
func (m Mask) String() string {
	var b strings.Builder
	b.WriteByte('{')
	for i := 0; i < MaxGPUs; {
		if !m.Has(i) {
			i++
			continue
		}
		end := i
		for m.Has(end + 1) {
			end++
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(i))
		switch {
		case end == i+1:
			b.WriteByte(',')
			b.WriteString(strconv.Itoa(end))
		case end > i+1:
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(end))
		}
		i = end + 1
	}
	b.WriteByte('}')
	return b.String()
}

// ParseMask reads what [Mask.String] prints, with or without the braces: a comma
// separated list of positions and ranges, all below n. An empty list is the
// empty set. Positions may repeat.
func ParseMask(text string, n int) (Mask, error) {
	if n < 0 || n > MaxGPUs {
		return 0, fmt.Errorf("parsing GPU list %q: a machine has 0 to %d GPUs, not %d", text, MaxGPUs, n)
	}
	body := strings.TrimSpace(text)
	if strings.HasPrefix(body, "{") != strings.HasSuffix(body, "}") {
		return 0, fmt.Errorf("parsing GPU list %q: unbalanced braces", text)
	}
	body = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(body, "{"), "}"))
	if body == "" {
		return 0, nil
	}
	var m Mask
	for item := range strings.SplitSeq(body, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			last = first
		}
		from, err := parsePosition(first, n)
		if err != nil {
			return 0, fmt.Errorf("parsing GPU list %q: %w", text, err)
		}
		to, err := parsePosition(last, n)
		if err != nil {
			return 0, fmt.Errorf("parsing GPU list %q: %w", text, err)
		}
		if from > to {
			return 0, fmt.Errorf("parsing GPU list %q: range %q runs backwards", text, item)
		}
		for i := from; i <= to; i++ {
			m = m.With(i)
		}
	}
	return m, nil
}

func parsePosition(text string, n int) (int, error) {
	text = strings.TrimSpace(text)
	v, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a GPU position", text)
	}
	if int(v) >= n {
		return 0, fmt.Errorf("position %d is not on this machine, which has %d GPUs", v, n)
	}
	return int(v), nil
}
