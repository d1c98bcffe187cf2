// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress shows how much is done: a bar on a terminal, elsewhere one line for every
// tenth. It may be used from several goroutines.
type progress struct {
	out   io.Writer
	live  bool
	start time.Time

	mu    sync.Mutex
	shown int64 // thousandths on a terminal, tenths elsewhere
}

// barWidth is the width of the bar in characters.
const barWidth = 40

func newProgress(out io.Writer) *progress {
	f, isFile := out.(*os.File)
	return &progress{out: out, live: isFile && term.IsTerminal(int(f.Fd())), start: time.Now(), shown: -1}
}

// show says that part of the whole is done.
func (p *progress) show(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	steps := int64(10)
	if p.live {
		steps = 1000
	}
	at := steps * done / max(1, total)
	if at <= p.shown {
		return
	}
	p.shown = at
	elapsed := time.Since(p.start)
	left := "?"
	if done > 0 {
		left = (elapsed * time.Duration(total-done) / time.Duration(done)).Round(time.Second).String()
	}
	// A lost progress line must not stop the work.
	if !p.live {
		_, _ = fmt.Fprintf(p.out, "%3d %%, %s, about %s left\n", 100*done/max(1, total), elapsed.Round(time.Second), left)
		return
	}
	full := int(barWidth * done / max(1, total))
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K[%s%s] %5.1f %%  %s, about %s left", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		100*float64(done)/float64(max(1, total)), elapsed.Round(time.Second), left)
}

// close clears the bar.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
