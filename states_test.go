package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAWaiterWaitsOutANodeWithTooManyClients(t *testing.T) {
	for _, text := range []string{
		"ERR max number of clients reached", "ERR max number of clients + cluster connections reached", "CLUSTERDOWN Hash slot not served",
	} {
		t.Run(text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				holder := r.acquire("a", time.Hour)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				waiter := waitFor(ctx, r.locker(WithPollInterval(time.Second)), "a", time.Minute)
				time.Sleep(10 * time.Second)
				renewed := r.acquire("b", 3*time.Second, WithWatchdog())
				r.answerWith(func(string) string { return text })
				time.Sleep(2 * time.Second)
				r.answerWith(nil)
				require.NoError(t, holder.Release(t.Context()))
				got := <-waiter
				require.NoError(t, got.err)
				require.NoError(t, renewed.Err())
			})
		})
	}
}

// A name that is the name of a state gets the same answers as any other.
func TestANameThatIsAStateIsNoState(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		const name = "BUSY: LOADING x"
		r.answerWith(func(string) string {
			return "ERR unknown command 'evalsha', with args beginning with: 'lock:" + name + "' "
		})
		_, err := r.locker().TryAcquire(t.Context(), name, time.Minute)
		require.ErrorContains(t, err, "unknown command")
		require.Equal(t, 1, r.requests(opAcquire), "it is not repeated")
	})
}
