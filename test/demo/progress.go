// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells a person what the demo does now. On a terminal it keeps one line up to date; elsewhere it prints one line
// per step, so that a log stays readable. It may be used from several goroutines.
type Progress struct {
	out   io.Writer
	live  bool // rewrite one line in place
	style Style
	since time.Time
	now   func() time.Time

	mu     sync.Mutex
	step   string
	ticker *time.Ticker
	done   chan struct{}
	wait   sync.WaitGroup
}

// tick is how often the elapsed time on a terminal is renewed.
const tick = 200 * time.Millisecond

// NewProgress starts to report on out. Call Close when the work is over.
func NewProgress(out io.Writer, live bool, style Style) *Progress {
	p := &Progress{out: out, live: live, style: style, now: time.Now, done: make(chan struct{})}
	p.since = p.now()
	if live {
		p.ticker = time.NewTicker(tick)
		p.wait.Go(p.redraw)
	}
	return p
}

func (p *Progress) redraw() {
	for {
		select {
		case <-p.done:
			return
		case <-p.ticker.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// Step says what begins now.
func (p *Progress) Step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = fmt.Sprintf(format, args...)
	if p.live {
		p.draw()
		return
	}
	// A lost progress line must not stop the work.
	_, _ = fmt.Fprintf(p.out, "%s  %s\n", p.elapsed(), p.step)
}

// draw rewrites the line; the caller holds the lock.
func (p *Progress) draw() {
	if p.step == "" {
		return
	}
	line := p.elapsed() + "  " + cut(p.step, tableWidth-10)
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s", p.style.paint(ansiDim, line))
}

func (p *Progress) elapsed() string {
	return padLeft(fmt.Sprintf("%.1f s", p.now().Sub(p.since).Seconds()), 8)
}

// Elapsed is the time since NewProgress.
func (p *Progress) Elapsed() time.Duration { return p.now().Sub(p.since) }

// Close ends the reporting and clears the line. It must be called once.
func (p *Progress) Close() {
	close(p.done)
	if p.ticker != nil {
		p.ticker.Stop()
	}
	p.wait.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
