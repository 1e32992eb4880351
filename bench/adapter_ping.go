package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// pingAdapter does what no lock can do without: one trip to acquire, another to
// release.
func pingAdapter() adapter {
	return adapter{
		id: "ping", title: "bare PINGs (limit)", noLock: true, groups: uncontended | latency,
		config: "go-redis with ContextTimeoutEnabled, else its defaults; a PING to acquire and a PING to release. In the hand-over, one PING.",
		module: goRedis,
		sends:  []string{"ping"},
		open: func(s settings) (locker, error) {
			return &pingLocker{s.client()}, nil
		},
	}
}

type pingLocker struct{ client *redis.Client }

func (l *pingLocker) lock(ctx context.Context, _ string) (held, error) { return l, l.unlock(ctx) }

func (l *pingLocker) unlock(ctx context.Context) error { return l.client.Ping(ctx).Err() }

func (l *pingLocker) close() { _ = l.client.Close() }
