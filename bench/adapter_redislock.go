package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock"
)

func redislockAdapter() adapter {
	return adapter{
		id: ours, title: "redislock (this one)", groups: everywhere | growths,
		config: "New(client) with its defaults, on go-redis with ContextTimeoutEnabled; Acquire. Held locks: WithWatchdog. Locks around a function: WithLock.",
		module: "github.com/e2e3f2a3/redislock",
		sends:  []string{"eval", "evalsha", "subscribe", "unsubscribe", "ping"},
		open: func(s settings) (locker, error) {
			client := s.client()
			l := &redislockLocker{client: client, locker: redislock.New(client), ttl: s.ttl}
			if s.renew {
				l.opts = []redislock.AcquireOption{redislock.WithWatchdog()}
			}
			return l, nil
		},
	}
}

type redislockLocker struct {
	client *redis.Client
	locker *redislock.Locker
	ttl    time.Duration
	opts   []redislock.AcquireOption
}

func (l *redislockLocker) lock(ctx context.Context, name string) (held, error) {
	lock, err := l.locker.Acquire(ctx, name, l.ttl, l.opts...)
	return redislockHeld{lock}, err
}

func (l *redislockLocker) withLock(ctx context.Context, name string, section func(context.Context) error) error {
	return l.locker.WithLock(ctx, name, l.ttl, func(ctx context.Context, _ *redislock.Lock) error { return section(ctx) })
}

func (l *redislockLocker) close() { _ = l.client.Close() }

type redislockHeld struct{ *redislock.Lock }

func (h redislockHeld) unlock(ctx context.Context) error { return h.Release(ctx) }
