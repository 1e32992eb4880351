package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// pairRetry is on the short side of what people write, to the pair's advantage.
const pairRetry = 10 * time.Millisecond

var (
	errTaken = errors.New("the key holds another token")

	deleteIfMine = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	extendIfMine = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], ARGV[2]) end return 0`)
)

// pairAdapter is what one writes without a library, from the Redis manual.
func pairAdapter() adapter {
	return adapter{
		id: pair, title: "hand-written pair", groups: everywhere | growths,
		config: "go-redis with ContextTimeoutEnabled, else its defaults: SET NX PX, EVALSHA of a compare-and-delete; to wait, again every 10 ms. " +
			"Held locks: a goroutine for each extends every TTL/3.",
		module: goRedis,
		sends:  []string{"set", "eval", "evalsha"},
		open: func(s settings) (locker, error) {
			return &pairLocker{client: s.client(), settings: s}, nil
		},
	}
}

type pairLocker struct {
	client   *redis.Client
	settings settings
}

func (l *pairLocker) lock(ctx context.Context, name string) (held, error) {
	h := &pairHeld{locker: l, name: name, token: rand.Text()}
	for {
		ok, err := l.client.SetNX(ctx, name, h.token, l.settings.ttl).Result()
		if err != nil {
			return nil, err
		}
		if ok {
			return l.settings.keep(h), nil
		}
		if err := sleep(ctx, pairRetry); err != nil {
			return nil, err
		}
	}
}

func (l *pairLocker) close() { _ = l.client.Close() }

type pairHeld struct {
	locker      *pairLocker
	name, token string
}

func (h *pairHeld) unlock(ctx context.Context) error {
	return h.mine(deleteIfMine.Run(ctx, h.locker.client, []string{h.name}, h.token))
}

func (h *pairHeld) extend(ctx context.Context, ttl time.Duration) error {
	return h.mine(extendIfMine.Run(ctx, h.locker.client, []string{h.name}, h.token, ttl.Milliseconds()))
}

func (h *pairHeld) mine(reply *redis.Cmd) error {
	n, err := reply.Int()
	if err == nil && n == 0 {
		err = errTaken
	}
	return err
}
