package servertest_test

import (
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
)

// everywhere runs a test in each deployment. locker makes one more Locker, as
// another process has one, whose warnings go to log.
func everywhere(t *testing.T, test func(t *testing.T, locker func(...redislock.Option) *redislock.Locker, log *journal)) {
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		test(t, func(opts ...redislock.Option) *redislock.Locker {
			return r.lockerWith(r.relay.Client(t), opts...)
		}, r.log)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := startShards(t)
		test(t, func(opts ...redislock.Option) *redislock.Locker { return c.locker(t, opts...) }, c.log)
	})
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		f := newFollowed(t, 1)
		test(t, func(opts ...redislock.Option) *redislock.Locker {
			return f.lockerWith(f.relay.Client(t), append(opts, redislock.WithReplicas(1, soon))...)
		}, f.log)
	})
	t.Run("quorum", func(t *testing.T) {
		t.Parallel()
		q := newQuorumRig(t, 3)
		test(t, func(opts ...redislock.Option) *redislock.Locker {
			return q.locker(t, append(opts, redislock.WithNodeTimeout(time.Second))...)
		}, q.nodes[0].log)
	})
}
