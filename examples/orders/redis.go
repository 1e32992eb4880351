package main

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/e2e3f2a3/redislock"
)

// openLocks connects to Redis. With -unsafe there is nothing to connect to, and
// it returns a nil Locker.
func openLocks(ctx context.Context, c config) (*redislock.Locker, func(), error) {
	if c.unsafe {
		return nil, func() {}, nil
	}
	addr, stop, err := redisAddr(c.redisAddr)
	if err != nil {
		return nil, nil, err
	}
	logging.Disable() // its errors are returned to us anyway, and would tear the timeline
	client := redis.NewClient(&redis.Options{Addr: addr})
	closeAll := func() { client.Close(); stop() }
	if err := ping(ctx, client); err != nil {
		closeAll()
		return nil, nil, fmt.Errorf("no Redis at %s: %w", addr, err)
	}
	return newLocker(client), closeAll, nil
}

// newLocker keeps to a prefix of its own, and lets Redis forget the fences soon
// after the run: this program's database is gone with it.
func newLocker(client redislock.Client) *redislock.Locker {
	return redislock.New(client,
		redislock.WithPrefix("orders-demo:lock:"),
		redislock.WithFenceRetention(time.Minute))
}

// redisAddr starts an embedded Redis where no address is given.
func redisAddr(given string) (addr string, stop func(), err error) {
	if given != "" {
		return given, func() {}, nil
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // without it, keys expire only when a test says so
	if err := m.Start(); err != nil {
		return "", nil, fmt.Errorf("embedded Redis: %w", err)
	}
	return m.Addr(), m.Close, nil
}

// ping finds out at the start, and soon, whether there is a Redis. go-redis by
// itself would dial for much longer.
func ping(ctx context.Context, client *redis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.Ping(ctx).Err()
}
