package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func redsyncAdapter() adapter {
	return adapter{
		id: "redsync", title: "redsync", library: true, groups: everywhere,
		config: "One go-redis v9 pool with ContextTimeoutEnabled; its defaults: 32 tries, 50 to 250 ms apart. When they are used up LockContext is called again, " +
			"as its documentation suggests. Held locks: a goroutine for each calls ExtendContext every TTL/3.",
		module: "github.com/go-redsync/redsync/v4",
		sends:  []string{"set", "eval", "evalsha"},
		open: func(s settings) (locker, error) {
			client := s.client()
			return &redsyncLocker{client: client, redsync: redsync.New(goredis.NewPool(client)), settings: s}, nil
		},
	}
}

type redsyncLocker struct {
	client   *redis.Client
	redsync  *redsync.Redsync
	settings settings
}

func (l *redsyncLocker) lock(ctx context.Context, name string) (held, error) {
	mutex := l.redsync.NewMutex(name, redsync.WithExpiry(l.settings.ttl))
	for {
		err := mutex.LockContext(ctx)
		var taken *redsync.ErrTaken
		switch {
		case err == nil:
			return l.settings.keep(redsyncHeld{mutex}), nil
		case ctx.Err() != nil, !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed):
			return nil, err
		}
	}
}

func (l *redsyncLocker) close() { _ = l.client.Close() }

type redsyncHeld struct{ mutex *redsync.Mutex }

func (h redsyncHeld) unlock(ctx context.Context) error {
	_, err := h.mutex.UnlockContext(ctx)
	return err
}

func (h redsyncHeld) extend(ctx context.Context, _ time.Duration) error {
	_, err := h.mutex.ExtendContext(ctx)
	return err
}
