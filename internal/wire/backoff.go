package wire

import (
	"context"
	"math/rand/v2"
	"time"
)

// Requests that failed, and questions that are asked again, are repeated with
// pauses that double from FirstPause to LastPause. The jitter keeps processes
// that failed together from coming back together.
const (
	Tries      = 3 // of a request whose failure is reported
	FirstPause = 10 * time.Millisecond
	LastPause  = 500 * time.Millisecond
)

// Backoff counts the pauses of one series of tries. Its zero value is ready for
// use.
type Backoff struct{ n int }

// Next is the length of the next pause.
func (b *Backoff) Next() time.Duration {
	d := LastPause
	if b.n < 6 { // 10 ms << 6 is beyond LastPause
		d = FirstPause << b.n
		b.n++
	}
	return d/2 + rand.N(d/2+1)
}

// Pause waits for d, and reports false if ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Repeat calls try up to Tries times, with pauses between, and returns its last
// error. It ends when there is none, when the failure does not pass, when try
// says that it is enough, and in a pause when ctx ends. alone says that the
// request of this try is to share no round trip (see MaybeAnothers).
//
// try is always called once, whatever ctx is.
func Repeat(ctx context.Context, try func(alone bool) (enough bool, err error)) (err error) {
	var b Backoff
	for n := range Tries {
		if n > 0 && !Pause(ctx, b.Next()) {
			break
		}
		var enough bool
		enough, err = try(n == Tries-1 && MaybeAnothers(err))
		if enough || err == nil || !IsTransient(err) {
			break
		}
	}
	return err
}
