package redislock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clients []Client
		var rs []*fakeRedis
		for range 3 {
			r := newFakeRedis(t)
			rs = append(rs, r)
			clients = append(clients, r.client)
		}
		lk, err := NewQuorum(clients)
		require.NoError(t, err)
		lock, err := lk.Acquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		for _, r := range rs {
			require.Equal(t, lock.Token(), r.value("lock:a"))
		}
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		info, err := lk.Inspect(t.Context(), "a")
		require.NoError(t, err)
		t.Log(info, lock.Fence())
		require.NoError(t, lock.Release(t.Context()))
	})
}
