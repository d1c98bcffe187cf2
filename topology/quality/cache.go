// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"sync"

	"github.com/topodra/topodra/topology"
)

// DefaultCacheSize is how many classes a [Cache] keeps by default. A fleet has
// tens of kinds of machines; every state of degradation is a kind of its own.
const DefaultCacheSize = 256

// Cache shares the classes of equal machines. The zero value is not usable.
type Cache struct {
	opts  Options
	limit int

	mu      sync.Mutex
	entries map[topology.ClassID]*entry
	clock   uint64
}

type entry struct {
	once sync.Once
	c    *Class
	err  error
	used uint64
}

// NewCache returns a cache of at most limit classes, DefaultCacheSize when limit is
// not positive.
func NewCache(limit int, opts Options) *Cache {
	if limit <= 0 {
		limit = DefaultCacheSize
	}
	return &Cache{opts: opts, limit: limit, entries: map[topology.ClassID]*entry{}}
}

// Get returns the class of the machine and builds it if necessary. Concurrent
// callers with equal machines wait for one of them to build it.
func (c *Cache) Get(m *topology.Machine) (*Class, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	e := c.entry(m.ClassID())
	e.once.Do(func() { e.c, e.err = NewClass(m, c.opts) })
	return e.c, e.err
}

func (c *Cache) entry(id topology.ClassID) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	e, ok := c.entries[id]
	if !ok {
		if len(c.entries) >= c.limit {
			c.evict()
		}
		e = &entry{}
		c.entries[id] = e
	}
	e.used = c.clock
	return e
}

// evict drops the entry that was not used for the longest time.
func (c *Cache) evict() {
	var oldest topology.ClassID
	first := true
	for id, e := range c.entries {
		if first || e.used < c.entries[oldest].used {
			oldest, first = id, false
		}
	}
	delete(c.entries, oldest)
}

// Len returns how many classes the cache holds.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
