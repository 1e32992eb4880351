package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/redistest"
)

func startedAdmin(t *testing.T) *redis.Client {
	t.Helper()
	return redistest.Start(t).Client(t)
}

// Whatever runs the section, the library or what is written by hand: it has the
// lock, keeps it for longer than a lease, and gives it back when it has failed.
func TestWithLockOfEachAdapter(t *testing.T) {
	admin := startedAdmin(t)
	const ttl = time.Second
	errSection := errors.New("the section failed")
	for _, a := range adapters() {
		if a.groups&uncontended == 0 || a.noLock {
			continue
		}
		t.Run(a.id, func(t *testing.T) {
			t.Parallel()
			name := "within-" + a.id
			open := func() locker {
				l, err := a.open(settings{addr: admin.Options().Addr, ttl: ttl})
				require.NoError(t, err)
				t.Cleanup(l.close)
				return l
			}
			l, other := open(), open()
			called := false
			section := func(inside context.Context) error {
				waiting, cancel := context.WithTimeout(t.Context(), 2*ttl)
				defer cancel()
				_, err := other.lock(waiting, name)
				require.Error(t, err, "it is held")
				require.NoError(t, inside.Err())
				called = true
				return errSection
			}
			var err error
			for try := 0; try < takeTries && !called; try++ { // see takeFree
				ctx, cancel := context.WithTimeout(t.Context(), takeLimit+2*ttl)
				err = withinOf(l, ttl).withLock(ctx, name, section)
				cancel()
			}
			require.ErrorIs(t, err, errSection)
			h, err := takeFree(t.Context(), other, name)
			require.NoError(t, err)
			require.NoError(t, h.unlock(t.Context()))
		})
	}
}

// By hand too, the section is told when its lock is lost.
func TestSectionByHandEndsWithItsLock(t *testing.T) {
	err := withinOf(&lapsingLocker{}, 3*time.Millisecond).withLock(t.Context(), "name", func(inside context.Context) error {
		<-inside.Done()
		return context.Cause(inside)
	})
	require.ErrorIs(t, err, errTaken)
}

type lapsingLocker struct{}

func (*lapsingLocker) lock(context.Context, string) (held, error) { return &lapsing{}, nil }
func (*lapsingLocker) close()                                     {}
