// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedBuilder is a strings.Builder for several goroutines.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestProgressInALog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuilder
		p := NewProgress(&out, false, Style{Enabled: true})
		p.Step("starting %d nodes", 6)
		time.Sleep(12300 * time.Millisecond)
		p.Step("job %s", "job-01")
		if got := p.Elapsed(); got != 12300*time.Millisecond {
			t.Errorf("elapsed %s, want 12.3s", got)
		}
		p.Close()
		want := "   0.0 s  starting 6 nodes\n  12.3 s  job job-01\n"
		if got := out.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestProgressOnATerminal: one line, renewed while a step takes long, cut to the width, gone in the end.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuilder
		p := NewProgress(&out, true, Style{})
		p.Step("%s", strings.Repeat("x", 200))
		time.Sleep(tick + time.Millisecond)
		synctest.Wait()
		p.Close()
		text := out.String()
		if strings.Contains(text, "\n") {
			t.Errorf("a line was ended: %q", text)
		}
		cutLine := strings.Repeat("x", tableWidth-11) + "…"
		want := "\r\x1b[K   0.0 s  " + cutLine + "\r\x1b[K   0.2 s  " + cutLine + "\r\x1b[K"
		if text != want {
			t.Errorf("got %q, want %q", text, want)
		}
	})
}
