package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/clocktest"
)

var (
	errOver  = errors.New("the lease is over")
	errGiven = errors.New("given up")
)

// start begins a term that ends with errOver when its lease is over.
func start(t *testing.T, clocks *Clocks, ttl time.Duration) *Term {
	term := new(Term)
	term.Start(clocks, time.Now(), ttl, func() {
		if term.Check() {
			term.End(errOver)
		}
	})
	t.Cleanup(func() { term.End(errGiven) })
	return term
}

func isOver(term *Term) bool { return term.Context().Err() != nil }

func endsWithin(term *Term, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-term.Context().Done():
		return true
	case <-timer.C:
		return false
	}
}

func TestTermEndsWithItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		term := start(t, new(Clocks), time.Minute)
		<-term.Context().Done()
		require.Equal(t, time.Minute-Margin(time.Minute), time.Since(begin))
		require.Equal(t, begin.Add(time.Since(begin)), term.Until())
		require.ErrorIs(t, term.Err(), errOver)
		require.ErrorIs(t, context.Cause(term.Context()), errOver)
	})
}

func TestTermEndsOnce(t *testing.T) {
	term := start(t, new(Clocks), time.Minute)
	var wait sync.WaitGroup
	var mu sync.Mutex
	firsts := 0
	for range 10 {
		wait.Go(func() {
			if term.End(errGiven) {
				mu.Lock()
				defer mu.Unlock()
				firsts++
			}
		})
	}
	wait.Wait()
	require.Equal(t, 1, firsts)
	require.False(t, term.End(errOver))
	require.Equal(t, errGiven, term.Err())
}

// What may end a term does so for everybody who asks, and not if nobody has.
func TestTermThatMayEnd(t *testing.T) {
	for name, c := range map[string]struct {
		before, between func(term *Term)
		notDone, lost   error
	}{
		"nobody asks":               {nil, nil, nil, errOver},
		"somebody asks":             {nil, func(term *Term) { _ = term.Err() }, errGiven, errGiven},
		"somebody has a context":    {func(term *Term) { _ = term.Context() }, nil, errGiven, errGiven},
		"the package peeks":         {nil, func(term *Term) { _, _ = term.Peek() }, nil, errOver},
		"a context is made of it":   {nil, func(term *Term) { _ = term.Context() }, errGiven, errGiven},
		"it may end twice":          {nil, func(term *Term) { term.MayEnd(errOver) }, nil, errOver},
		"it has ended before":       {func(term *Term) { term.End(errGiven) }, func(term *Term) { term.DidNotEnd() }, errGiven, errGiven},
		"it has ended, and is told": {func(term *Term) { term.End(errGiven) }, func(term *Term) { _ = term.Err() }, errGiven, errGiven},
	} {
		t.Run(name, func(t *testing.T) {
			ready := func() *Term {
				term := start(t, new(Clocks), time.Minute)
				if c.before != nil {
					c.before(term)
				}
				term.MayEnd(errGiven)
				if c.between != nil {
					c.between(term)
				}
				return term
			}
			term := ready()
			term.DidNotEnd()
			require.Equal(t, c.notDone, term.Err())
			term = ready()
			term.End(errOver)
			require.Equal(t, c.lost, term.Err())
		})
	}
}

func TestExtensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := start(t, new(Clocks), time.Minute)
		lasts := func() time.Duration { return term.Remaining().Round(time.Second) }

		require.True(t, term.Extended(time.Now(), 10*time.Minute))
		require.Equal(t, 594*time.Second, lasts())
		term.Shorten(5 * time.Minute)
		require.Equal(t, 297*time.Second, lasts(), "it is trusted before it is asked for")
		require.Equal(t, 5*time.Minute, term.TTL())
		term.Shorten(time.Hour)
		require.Equal(t, 297*time.Second, lasts(), "nor longer than before")

		term.MayBeCutTo(2 * time.Minute)
		term.MayBeCutTo(3 * time.Minute)
		require.True(t, term.Extended(time.Now(), 10*time.Minute))
		require.Equal(t, 119*time.Second, lasts(), "an earlier one may be executed late")
		require.Equal(t, 10*time.Minute, term.TTL())
		term.SetFloor(4 * time.Minute)
		require.True(t, term.Extended(time.Now(), 10*time.Minute))
		require.Equal(t, 238*time.Second, lasts())

		time.Sleep(237 * time.Second)
		require.False(t, isOver(term))
		time.Sleep(2 * time.Second)
		require.True(t, isOver(term))
		require.False(t, term.Extended(time.Now(), time.Hour))
	})
}

func TestRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := start(t, new(Clocks), time.Minute)
		failure := errors.New("no reply")

		time.Sleep(10 * time.Second)
		r := term.BeginRenewal()
		require.Equal(t, time.Minute, r.TTL)
		require.Equal(t, 50*time.Second-Margin(time.Minute), r.Remaining)
		term.Renewed(r, time.Now(), failure)
		sent, trusted, err := term.Confirmed()
		require.Equal(t, 10*time.Second, time.Since(sent))
		require.Equal(t, time.Minute, trusted)
		require.Equal(t, failure, err)

		term.Renewed(term.BeginRenewal(), time.Now(), nil)
		sent, _, err = term.Confirmed()
		require.Zero(t, time.Since(sent))
		require.NoError(t, err)

		r = term.BeginRenewal()
		term.Shorten(2 * time.Second)
		term.Renewed(r, time.Now(), nil)
		require.Less(t, term.Remaining(), 2*time.Second, "the two may be executed in either order")
		term.Renewed(r, time.Now(), failure)
		_, _, err = term.Confirmed()
		require.NoError(t, err, "it says nothing about the lease that is asked for now")
	})
}

// A timer stands still with the machine. Once a second the clocks are asked: a
// term whose lease is over by the wall clock ends, and of another the timer is
// set anew. (In real time: a bubble has no monotonic clock.)
func TestSuspendedMachine(t *testing.T) {
	const most = 3563 * time.Second // of an hour's lease, which ends a second later
	require.Less(t, From(time.Now(), time.Hour).Remaining(time.Now())-most, time.Second)
	for name, test := range map[string]struct {
		suspended time.Duration
		check     func(term *Term) bool // once the clocks were asked
	}{
		"not at all":              {0, func(term *Term) bool { return !isOver(term) }},
		"set back":                {-time.Hour, func(term *Term) bool { return !isOver(term) }},
		"for a part of the lease": {most, func(term *Term) bool { return !isOver(term) && endsWithin(term, 10*time.Second) }},
		"to the end of the lease": {time.Hour, isOver},
	} {
		t.Run(name, func(t *testing.T) {
			machine := new(clocktest.Clock)
			clocks := &Clocks{Now: machine.Now}
			term := start(t, clocks, time.Hour)
			machine.Suspend(test.suspended)
			require.Equal(t, test.suspended == time.Hour, term.Expired())
			clocks.tick()
			require.True(t, test.check(term))
		})
	}
}

// What the wall clock gains after it was set back counts from there: for a
// lease that was renewed since then, as for one that was granted a moment
// after.
func TestSuspensionAfterTheClockWasSetBack(t *testing.T) {
	for name, renewed := range map[string]bool{"renewed": true, "granted": false} {
		t.Run(name, func(t *testing.T) {
			machine := new(clocktest.Clock)
			machine.Suspend(time.Hour)
			clocks := &Clocks{Now: machine.Now}
			term := new(Term)
			begin := func() {
				term.Start(clocks, machine.Now(), time.Hour, func() {
					if term.Check() {
						term.End(errOver)
					}
				})
			}
			if renewed {
				begin()
			}
			machine.Suspend(-time.Hour)
			clocks.tick()
			if renewed {
				term.Renewed(term.BeginRenewal(), machine.Now(), nil)
			} else {
				begin()
			}
			require.False(t, isOver(term))
			machine.Suspend(time.Hour)
			clocks.tick()
			require.True(t, isOver(term))
		})
	}
}

// Once all terms have ended the clocks are left alone, until there is another.
// Nothing is left to a timer.
func TestClocksAreAskedWhileThereAreTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clocks := new(Clocks)
		ticking := func() bool {
			synctest.Wait()
			clocks.mu.Lock()
			defer clocks.mu.Unlock()
			return clocks.ticking
		}
		for range 2 {
			require.False(t, ticking())
			term := start(t, clocks, time.Hour)
			time.Sleep(time.Minute)
			require.True(t, ticking())
			require.Equal(t, 1, clocks.Watched())
			term.End(errGiven)
			require.Zero(t, clocks.Watched())
			require.False(t, term.expiry.Stop(), "its timer is stopped")
			time.Sleep(clockPause)
		}
		require.False(t, ticking())
	})
}
