package redislock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lines holds, for each name that is waited for in this process, the line of
// those who wait. Only the first in a line asks Redis; the others cost nothing.
type lines struct {
	mu   sync.Mutex
	byID map[string]*line // by lock key
}

// line is the local queue for one name: first come, first served. It exists
// while somebody stands in it.
type line struct {
	places []*place
	last   error // what the last question came to; nil: somebody else holds the lock
}

// place is where one goroutine stands in a line.
type place struct {
	lines *lines
	key   string
	line  *line
	first chan struct{} // closed when everybody before has left
}

// occupied tells whether somebody waits for key in this process.
func (ls *lines) occupied(key string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.byID[key] != nil
}

// join takes the last place in the line for key.
func (ls *lines) join(key string) *place {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byID[key]
	if l == nil {
		if ls.byID == nil {
			ls.byID = make(map[string]*line)
		}
		l = &line{}
		ls.byID[key] = l
	}
	p := &place{lines: ls, key: key, line: l, first: make(chan struct{})}
	l.places = append(l.places, p)
	if len(l.places) == 1 {
		close(p.first)
	}
	return p
}

// leave gives the place up, and calls the next one if it was the first.
func (p *place) leave() {
	ls, l := p.lines, p.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	at := slices.Index(l.places, p)
	l.places = slices.Delete(l.places, at, at+1)
	switch {
	case len(l.places) == 0:
		delete(ls.byID, p.key)
	case at == 0:
		close(l.places[0].first)
	}
}

// learned tells everybody in the line what the last question came to.
func (p *place) learned(err error) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	p.line.last = err
}

func (p *place) lastLearned() error {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	return p.line.last
}

// wait stands in line until it holds the lock, ctx ends, or Redis refuses for
// good.
func (a *acquisition) wait(ctx context.Context) (*Lock, error) {
	p := a.lk.lines.join(a.keys.lock)
	defer p.leave()
	select {
	case <-p.first:
	case <-ctx.Done():
		return nil, gaveUp(ctx, p.lastLearned())
	}
	return a.poll(ctx, p)
}

// poll asks Redis again and again.
func (a *acquisition) poll(ctx context.Context, p *place) (*Lock, error) {
	var b backoff
	for {
		out := a.try(ctx)
		if ctx.Err() == nil || out.err == nil {
			a.warnOfOutage(p.lastLearned(), out.err)
			p.learned(out.err)
		}
		switch {
		case out.lock != nil:
			return out.lock, nil
		case out.err != nil && !isTransient(out.err):
			return nil, out.err
		case !pause(ctx, a.untilNextQuestion(&b, out)):
			return nil, gaveUp(ctx, p.lastLearned())
		}
	}
}

// untilNextQuestion is not longer than the holder's lease lasts: when a holder
// has died, that is when the lock becomes free.
func (a *acquisition) untilNextQuestion(b *backoff, out outcome) time.Duration {
	d := min(b.next(), a.lk.opts.pollInterval)
	if out.err == nil && out.left >= 0 {
		d = min(d, out.left+time.Millisecond)
	}
	return d
}

func (a *acquisition) warnOfOutage(before, now error) {
	if before == nil && now != nil && isTransient(now) {
		a.lk.opts.logger.Warn("redislock: waiting for a lock while Redis does not serve",
			"key", a.keys.lock, "error", now)
	}
}

// gaveUp is the error of one whose ctx ended while it waited. Only where the last
// answer was that somebody else holds the lock it is ErrNotAcquired: an outage is
// not contention.
func gaveUp(ctx context.Context, last error) error {
	if last == nil {
		return fmt.Errorf("%w: %w", ErrNotAcquired, contextError(ctx))
	}
	return fmt.Errorf("%w while Redis did not serve: %w", contextError(ctx), last)
}
