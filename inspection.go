package redislock

import (
	"context"
	"strings"
	"time"
)

// resume makes a handle of a lock that stands in Redis already. Unlike an
// acquisition it leaves nothing to undo.
func (a *acquisition) resume(ctx context.Context) (*Lock, error) {
	r := request{
		script: extendScript,
		keys:   []string{a.keys.lock, a.keys.fence},
		args:   []any{a.token, milliseconds(a.ttl), a.lk.fenceRetention(a.ttl), "set"},
		limit:  replyLimit(a.ttl),
	}
	c, reply, err := a.lk.persist(ctx, r)
	if err != nil {
		return nil, a.failed(err)
	}
	extended, err := parseExtend(reply)
	switch {
	case err != nil:
		return nil, a.failed(err)
	case !extended.held:
		return nil, a.failed(ErrNotHeld)
	case leaseFrom(c.sent, a.ttl).left(time.Now()) <= 0:
		return nil, a.failed(errLate)
	}
	return a.lk.newLock(a, extended.fence, c.sent), nil
}

func (lk *Locker) inspect(ctx context.Context, keys lockKeys) (r inspectReply, err error) {
	_, reply, err := lk.persist(ctx, request{
		script: inspectScript,
		keys:   []string{keys.lock, keys.fence},
		limit:  replyLimit(0),
	})
	if err != nil {
		return r, err
	}
	return parseInspect(reply)
}

func (r inspectReply) ttl() time.Duration {
	if r.left < 0 {
		return -1
	}
	return time.Duration(r.left) * time.Millisecond
}

func (r inspectReply) info() Info {
	if r.left == -2 {
		return Info{Fence: r.fence}
	}
	token, metadata, _ := strings.Cut(r.value, " ")
	return Info{Held: true, Token: token, Metadata: metadata, TTL: r.ttl(), Fence: r.fence}
}

func (r inspectReply) heldBy(token string) bool {
	return r.value == token || strings.HasPrefix(r.value, token+" ")
}
