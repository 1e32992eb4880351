package redislock

import (
	"fmt"
	"time"
)

// ticket is what stands in a queue for one that waits: all that another process
// needs to acquire the lock for it, and where to tell it (see
// lua/lib/queue.lua).
type ticket struct {
	inbox    string
	ttl      time.Duration
	metadata string
}

// text is empty for a nil ticket.
func (t *ticket) text(prefix string, keys *lockKeys, token lockToken) string {
	if t == nil {
		return ""
	}
	space := ""
	if t.metadata != "" {
		space = " "
	}
	return fmt.Sprintf("%s %d %d %d %s%s%s", token.text, milliseconds(t.ttl), len(prefix), len(keys.lock)-len(prefix), t.inbox, space, t.metadata)
}

// size is about how long the text is.
func (t *ticket) size() int {
	if t == nil {
		return 0
	}
	return 100 + len(t.metadata)
}

// ticketing is what a question says of the queue; nothing if ticket is empty.
type ticketing struct {
	inbox  string
	ticket string
	place  int64  // to stand at, us; 0: the last
	stale  string // an earlier ticket, to be withdrawn, or empty
}
