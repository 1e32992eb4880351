package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// queueAdapter is as fast as Redis can wake somebody up. Who dies with the token
// takes it along, and the name is locked for good.
func queueAdapter() adapter {
	return adapter{
		id: queue, title: "BLPOP/LPUSH (unsafe)", unsafe: true, groups: queueing,
		config:  "A list with one token for each name; go-redis with a connection for each waiter. No lease and no owner: for reference only.",
		module:  goRedis,
		sends:   []string{"blpop", "lpush"},
		prepare: layTokens,
		open: func(s settings) (locker, error) {
			const spare = 8 // for those that push
			o := s.options()
			o.PoolSize = s.conns + spare
			return &queueLocker{redis.NewClient(o)}, nil
		},
	}
}

func layTokens(ctx context.Context, admin *redis.Client, names []string) error {
	for _, name := range names {
		if err := admin.LPush(ctx, name, "token").Err(); err != nil {
			return err
		}
	}
	return nil
}

type queueLocker struct{ client *redis.Client }

func (l *queueLocker) lock(ctx context.Context, name string) (held, error) {
	if err := l.client.BLPop(ctx, 0, name).Err(); err != nil {
		return nil, err
	}
	return &queueHeld{l.client, name}, nil
}

func (l *queueLocker) close() { _ = l.client.Close() }

type queueHeld struct {
	client *redis.Client
	name   string
}

func (h *queueHeld) unlock(ctx context.Context) error {
	return h.client.LPush(ctx, h.name, "token").Err()
}
