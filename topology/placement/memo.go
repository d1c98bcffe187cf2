// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"sync"

	"github.com/topodra/topodra/topology/quality"
)

type memoKey struct {
	class *quality.Class
	body  string
}

// memo remembers answers in two generations: when the young one is full it
// becomes the old one, and what was not asked for since is forgotten.
type memo struct {
	half       int // entries per generation; 0 switches the memo off
	mu         sync.Mutex
	young, old map[memoKey]Result
}

func newMemo(size int) *memo {
	if size < 0 {
		return &memo{}
	}
	return &memo{half: max(1, size/2), young: map[memoKey]Result{}}
}

func (m *memo) get(key memoKey) (Result, bool) {
	if m.half == 0 {
		return Result{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.young[key]; ok {
		return r, true
	}
	r, ok := m.old[key]
	if ok {
		m.store(key, r)
	}
	return r, ok
}

func (m *memo) put(key memoKey, r Result) {
	if m.half == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(key, r)
}

func (m *memo) store(key memoKey, r Result) {
	if len(m.young) >= m.half {
		m.old, m.young = m.young, make(map[memoKey]Result, m.half)
	}
	m.young[key] = r
}
