package redislock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// optionTakers are the methods that take AcquireOptions.
var optionTakers = map[string]func(lk *Locker, ctx context.Context, opts ...AcquireOption) (op string, err error){
	"Acquire": func(lk *Locker, ctx context.Context, opts ...AcquireOption) (string, error) {
		_, err := lk.Acquire(ctx, "a", time.Minute, opts...)
		return opAcquire, err
	},
	"TryAcquire": func(lk *Locker, ctx context.Context, opts ...AcquireOption) (string, error) {
		_, err := lk.TryAcquire(ctx, "a", time.Minute, opts...)
		return opAcquire, err
	},
	"WithLock": func(lk *Locker, ctx context.Context, opts ...AcquireOption) (string, error) {
		return opAcquire, lk.WithLock(ctx, "a", time.Minute, func(context.Context, *Lock) error { panic("fn was run") }, opts...)
	},
	"Resume": func(lk *Locker, ctx context.Context, opts ...AcquireOption) (string, error) {
		_, err := lk.Resume(ctx, "a", "token", time.Minute, opts...)
		return opResume, err
	},
}

func TestMetadataThatIsTooLongIsRefusedWithoutTraffic(t *testing.T) {
	for name, take := range optionTakers {
		for _, length := range []int{MaxMetadata + 1, 1 << 20} {
			metadata := strings.Repeat("x", length)
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.requireSilence(func() {
						op, err := take(r.locker(), t.Context(), WithMetadata(metadata))
						requireFailure(t, err, op, "lock:a", ErrInvalidMetadata)
						require.Less(t, len(err.Error()), 200)
					})
				})
			})
			t.Run(name+" on a quorum", func(t *testing.T) {
				inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
					q.nodes[0].requireSilence(func() {
						op, err := take(q.Locker, t.Context(), WithMetadata(metadata))
						requireFailure(t, err, op, "lock:a", ErrInvalidMetadata)
					})
				})
			})
		}
	}
}

func TestTheLongestMetadata(t *testing.T) {
	longest := strings.Repeat("x", MaxMetadata)
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour, WithMetadata(longest))
		waiter := waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Minute, WithMetadata(longest))
		time.Sleep(time.Minute)
		require.NoError(t, holder.Release(t.Context()))
		got := <-waiter
		require.NoError(t, got.err)
		info, err := r.locker().Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, longest, info.Metadata)
		require.Equal(t, got.lock.Token(), info.Token)
		_, err = r.locker().Resume(t.Context(), "a", got.lock.Token(), time.Minute, WithMetadata(longest))
		require.NoError(t, err)
	})
}
