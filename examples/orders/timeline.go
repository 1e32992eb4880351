package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock"
)

// outcome is how a turn ended.
type outcome int

const (
	unfinished outcome = iota // failed or interrupted
	charged
	chargedAgain // without a lock: another worker had charged it before
	foundCharged
	refused // by the fence
)

// turn is one worker's time with one order.
type turn struct {
	worker, order string
	fence         int64 // 0 without a lock
	asked         time.Time
	began         time.Time // zero while it waits for the lock
	lost          time.Time // when its lease ended, if that was before its work did
	ended         time.Time
	outcome       outcome
}

func (t *turn) got(lock *redislock.Lock) {
	t.began, t.fence = time.Now(), lock.Fence()
}

func (t *turn) left(lock *redislock.Lock) {
	if lock.Err() != nil {
		t.lost = lock.Until()
	}
}

// waited is empty for a wait too short to speak of.
func (t *turn) waited() string {
	if wait := t.began.Sub(t.asked); wait >= 10*time.Millisecond {
		return " after waiting " + ms(wait)
	}
	return ""
}

// found and wrote note the outcome, and hand the error through.
func (t *turn) found(isCharged bool, err error) error {
	switch {
	case errors.Is(err, errStale):
		t.outcome = refused
	case isCharged:
		t.outcome = foundCharged
	}
	return err
}

func (t *turn) wrote(times int, err error) error {
	switch {
	case errors.Is(err, errStale):
		t.outcome = refused
	case err == nil && times > 1:
		t.outcome = chargedAgain
	case err == nil:
		t.outcome = charged
	}
	return err
}

// timeline tells what happens while it happens, and remembers every turn for
// the drawing afterwards. It may be used by several goroutines.
type timeline struct {
	style style
	start time.Time

	mu    sync.Mutex
	out   io.Writer
	turns []turn
}

func newTimeline(out io.Writer, style style) *timeline {
	return &timeline{style: style, out: out, start: time.Now()}
}

// tell prints one line: the time, the worker, the order, the event.
func (tl *timeline) tell(worker, order string, tone tone, format string, args ...any) {
	who := worker
	if order != "" {
		who += "  " + order
	}
	what := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ") // joined errors have several lines
	tl.mu.Lock()
	defer tl.mu.Unlock()
	at := fmt.Sprintf("%7.3f s", time.Since(tl.start).Seconds())
	fmt.Fprintf(tl.out, "%s  %s  %s\n", tl.style.paint(faint, at), who, tl.style.paint(tone, what))
}

func (tl *timeline) begin(worker, order string) *turn {
	return &turn{worker: worker, order: order, asked: time.Now()}
}

func (tl *timeline) end(t *turn) {
	t.ended = time.Now()
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.turns = append(tl.turns, *t)
}

// all returns the turns that have ended.
func (tl *timeline) all() []turn {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return slices.Clone(tl.turns)
}
