package redislock

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"
)

// Requests that failed, and questions whether a lock is free by now, are
// repeated with pauses that double from firstPause to lastPause. The jitter
// keeps processes that failed together from coming back together.
const (
	tries      = 3 // of a request whose failure is reported
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// backoff counts the pauses of one series of tries. Its zero value is ready.
type backoff struct{ n int }

// next is the length of the next pause.
func (b *backoff) next() time.Duration {
	d := lastPause
	if b.n < 6 { // 10 ms << 6 is beyond lastPause
		d = firstPause << b.n
		b.n++
	}
	return d/2 + rand.N(d/2+1)
}

// pause waits for d, and reports false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempts yields a few times with pauses between, the first time at once. It
// ends early when ctx ends.
func attempts(ctx context.Context) iter.Seq[int] {
	return func(yield func(int) bool) {
		var b backoff
		for n := range tries {
			if n > 0 && !pause(ctx, b.next()) {
				return
			}
			if !yield(n) {
				return
			}
		}
	}
}
