package redislock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// lockKeys are the Redis keys of one name.
type lockKeys struct {
	lock  string // string: the token, or token + space + metadata
	fence string // string: the last fencing token
	queue string // sorted set: tickets of waiting processes, by arrival
}

func (k lockKeys) all() []string { return []string{k.lock, k.fence, k.queue} }

var errUntaggable = errors.New("a '}' without a hash tag before it leaves no way to keep the lock's keys in one slot")

// keysFor names the keys of a lock and checks the name. On a cluster all keys of
// one script must share a slot, hence the braces: Redis hashes what stands
// between the first '{' and the first '}' behind it, if that is not empty.
func (lk *Locker) keysFor(name string) (lockKeys, error) {
	key := lk.opts.prefix + name
	if name == "" {
		return lockKeys{lock: key}, fmt.Errorf("%w: it is empty", ErrInvalidName)
	}
	if ambiguous(key, lk.opts.prefix) {
		return lockKeys{lock: key}, fmt.Errorf("%w: %w", ErrInvalidName, errAmbiguous)
	}
	base, sameSlot := companionBase(key)
	if _, cluster := lk.client.(*redis.ClusterClient); cluster && !sameSlot {
		return lockKeys{lock: key}, fmt.Errorf("%w: %w", ErrInvalidName, errUntaggable)
	}
	return lockKeys{lock: key, fence: base + ":fence", queue: base + ":queue"}, nil
}

var errAmbiguous = errors.New("the keys that belong to it can be those of another name")

// ambiguous tells whether a key, or one that belongs to it, can be one that belongs
// to another name with the same prefix. That takes a hash tag in the name, or an
// empty prefix.
func ambiguous(key, prefix string) bool {
	isKey := func(s string) bool { return len(s) > len(prefix) && strings.HasPrefix(s, prefix) }
	isTag := func(s string) bool { // made of an untagged key, see companionBase
		inner, opened := strings.CutPrefix(s, "{")
		inner, closed := strings.CutSuffix(inner, "}")
		return opened && closed && isKey(inner) && !hasHashTag(inner)
	}
	for _, suffix := range []string{":fence", ":queue"} {
		base, found := strings.CutSuffix(key, suffix)
		if found && (isKey(base) && hasHashTag(base) || isTag(base)) {
			return true // "{t}:fence" belongs to "{t}"
		}
	}
	return hasHashTag(key) && isTag(key) // "{x}:fence" belongs to "x" and "{x}"
}

// companionBase is what the names of the companion keys begin with, and whether
// they fall into the slot of key.
func companionBase(key string) (base string, sameSlot bool) {
	if hasHashTag(key) {
		return key, true // the tag comes along
	}
	// Without a '}' of its own, key becomes the tag as a whole. With one, the tag
	// would end there, and the slot would be another.
	return "{" + key + "}", !strings.Contains(key, "}")
}

// hasHashTag follows the Redis Cluster specification, "Hash tags".
func hasHashTag(key string) bool {
	_, behind, found := strings.Cut(key, "{")
	return found && strings.Index(behind, "}") > 0
}
