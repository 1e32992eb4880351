package redislock

import "time"

// Info is what stands in Redis for one name. A name can be taken while nobody
// holds the lock: it is kept by [WithMinHold], or those that wait are called,
// for a quarter of a second at most, because a lease has ended. Held is true
// then, and Token empty.
type Info struct {
	Held     bool          // whether the name is taken, with this library or another
	Token    string        // the holder's token, without metadata; empty if nobody holds the lock
	Metadata string        // what the holder gave to WithMetadata, or the last one where the name is kept
	TTL      time.Duration // the remaining lease; -1 ns if the key has no expiry (a foreign lock)
	Waiters  int           // Lockers (processes) in the queue, with those that died lately; those that poll are not counted
	Fence    int64         // the last fencing token minted for the name, also when nobody holds it; 0 if there is no record
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
