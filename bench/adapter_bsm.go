package main

import (
	"context"
	"errors"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

func bsmAdapter() adapter {
	return adapter{
		id: "bsm", title: "bsm/redislock", library: true, groups: everywhere,
		config: "RetryStrategy LinearBackoff(100 ms), as in its example of waiting, without that example's limit of 3. " +
			"Held locks: a goroutine for each calls Refresh every TTL/3.",
		module: "github.com/bsm/redislock",
		sends:  []string{"eval", "evalsha"},
		open:   openBSM(func() bsm.RetryStrategy { return bsm.LinearBackoff(100 * time.Millisecond) }),
	}
}

func bsmExponentialAdapter() adapter {
	return adapter{
		id: "bsm-exp", title: "bsm/redislock, exponential", library: true, groups: queueing,
		config: "RetryStrategy ExponentialBackoff(16 ms, 100 ms): the shortest first wait that its documentation recommends.",
		module: "github.com/bsm/redislock",
		sends:  []string{"eval", "evalsha"},
		open: openBSM(func() bsm.RetryStrategy {
			return bsm.ExponentialBackoff(16*time.Millisecond, 100*time.Millisecond)
		}),
	}
}

// A strategy counts its tries, so each acquisition needs a new one.
func openBSM(strategy func() bsm.RetryStrategy) func(settings) (locker, error) {
	return func(s settings) (locker, error) {
		client := s.client()
		return &bsmLocker{client: client, locker: bsm.New(client), strategy: strategy, settings: s}, nil
	}
}

type bsmLocker struct {
	client   *redis.Client
	locker   *bsm.Client
	strategy func() bsm.RetryStrategy
	settings settings
}

// lock goes on where Obtain gives up: without a deadline in ctx it waits for one
// TTL only.
func (l *bsmLocker) lock(ctx context.Context, name string) (held, error) {
	for {
		lock, err := l.locker.Obtain(ctx, name, l.settings.ttl, &bsm.Options{RetryStrategy: l.strategy()})
		switch {
		case err == nil:
			return l.settings.keep(bsmHeld{lock}), nil
		case ctx.Err() != nil, !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
	}
}

func (l *bsmLocker) close() { _ = l.client.Close() }

type bsmHeld struct{ lock *bsm.Lock }

func (h bsmHeld) unlock(ctx context.Context) error { return h.lock.Release(ctx) }

func (h bsmHeld) extend(ctx context.Context, ttl time.Duration) error {
	return h.lock.Refresh(ctx, ttl, nil)
}
