package redislock

import "time"

// Info is the state of one name in Redis. A name can be taken without a holder:
// while [WithMinHold] keeps it, or, for a quarter of a second at most, while
// waiting processes are asked to register again because a lease has ended. Held
// is true then, and Token empty.
type Info struct {
	Held     bool          // whether the name is taken, by this library or another
	Token    string        // the holder's token, without metadata; empty without a holder
	Metadata string        // the text given to WithMetadata by the holder, or by the last one where the name is kept
	TTL      time.Duration // the remaining lease; -1 ns if the key has no expiry (a foreign lock)
	Waiters  int           // Lockers (processes) in the queue, including those that died recently; polling ones are not counted
	Fence    int64         // the last fencing token minted for the name, even without a holder; 0 if there is no record
}

func (r inspectReply) ttl() time.Duration {
	if r.left < 0 {
		return -1
	}
	return time.Duration(min(r.left, milliseconds(maxLease))) * time.Millisecond
}

func (r inspectReply) info() Info {
	if r.left == -2 {
		return Info{Fence: r.fence, Waiters: int(r.queue)}
	}
	v := parseValue(r.value)
	return Info{Held: true, Token: v.token, Metadata: v.metadata, TTL: r.ttl(), Fence: r.fence, Waiters: int(r.queue)}
}

func (r inspectReply) heldBy(token string) bool { return parseValue(r.value).token == token }
