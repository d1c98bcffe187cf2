// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strconv"
	"testing"
)

// TestMemoIsBounded: it never holds more than its size, and keeps what is in use.
func TestMemoIsBounded(t *testing.T) {
	t.Parallel()
	m := newMemo(10)
	hot := memoKey{body: "hot"}
	m.put(hot, Result{VMax: 1})
	for i := range 100 {
		m.put(memoKey{body: strconv.Itoa(i)}, Result{})
		if r, ok := m.get(hot); !ok || r.VMax != 1 {
			t.Fatalf("after %d entries the one in use is gone", i)
		}
		if held := len(m.young) + len(m.old); held > 10 {
			t.Fatalf("%d entries, the bound is 10", held)
		}
	}
	if _, ok := m.get(memoKey{body: "3"}); ok {
		t.Error("an old entry was not forgotten")
	}
	off := newMemo(-1)
	off.put(hot, Result{})
	if _, ok := off.get(hot); ok {
		t.Error("a memo that is off remembers")
	}
}
