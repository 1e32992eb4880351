package redislock

import (
	"errors"
	"fmt"
	"strings"
)

// lockKeys are the Redis keys of one name.
type lockKeys struct {
	lock  string // string: see lockValue
	fence string // string: the last fencing token
	queue string // sorted set: tickets of waiting processes, by arrival

	args [3]any // the same as arguments of a command
}

func (k *lockKeys) all() []any { return k.args[:] }

// newLockKeys names the keys of the lock prefix + name. All are parts of one
// text, since every acquisition needs them. tagged says that the lock's key has
// a hash tag.
func newLockKeys(prefix, name string, tagged bool) lockKeys {
	const fence, queue = ":fence", ":queue"
	open, closed := "", ""
	if !tagged {
		open, closed = "{", "}"
	}
	all := open + prefix + name + closed + fence + open + prefix + name + closed + queue
	lock := all[len(open):][:len(prefix)+len(name)]
	return lockKeys{lock: lock, fence: all[:len(all)/2], queue: all[len(all)/2:]} // fence and queue are as long
}

// lockToken is that of one acquisition.
type lockToken struct {
	text string
	arg  any // the same as an argument of a command
}

func newLockToken(text string) lockToken { return lockToken{text: text, arg: text} }

// lockValue is what stands under the key of a lock, by the format of
// lua/lib/value.lua: what its holder has put there, or a mark that is nobody's.
type lockValue struct {
	mark     string // what a mark begins with, or empty: somebody holds the lock
	data     string // of a mark
	token    string // of the holder; empty if it is a mark
	metadata string // of the holder, or of the last holder before the mark
}

// What marks begin with.
const (
	keptMark    = "kept:"    // the name is taken until a minimal hold is over; data: the token that has left it
	rollMark    = "roll:"    // waiters are called, for a moment; data: until when, and how many
	revokedMark = "revoked:" // the lock was taken away; data: the token that had it
)

func parseValue(value string) lockValue {
	word, metadata, _ := strings.Cut(value, " ")
	for _, mark := range []string{keptMark, rollMark, revokedMark} {
		if data, found := strings.CutPrefix(word, mark); found {
			return lockValue{mark: mark, data: data, metadata: metadata}
		}
	}
	return lockValue{token: word, metadata: metadata}
}

// isToken tells whether a text from outside can be the token of a lock: it is
// neither a mark nor a whole value with its metadata.
func isToken(text string) bool {
	return text != "" && parseValue(text) == lockValue{token: text}
}

var errUntaggable = errors.New("a '}' without a hash tag before it leaves no way to keep the lock's keys in one slot")

// naming is how the keys of names are made.
type naming struct {
	prefix    string
	clustered bool // all keys of a lock must share a slot
}

// keysFor names the keys of a lock and checks the name. On a cluster all keys
// of one script must share a slot, hence the braces: Redis hashes what stands
// between the first '{' and the first '}' behind it, if that is not empty.
func (n naming) keysFor(name string) (lockKeys, error) {
	keys := newLockKeys(n.prefix, name, false)
	tagged := hasHashTag(keys.lock) // then the tag comes along
	if tagged {
		keys = newLockKeys(n.prefix, name, true)
	}
	switch {
	case name == "":
		return keys, fmt.Errorf("%w: it is empty", ErrInvalidName)
	case ambiguous(keys.lock, n.prefix):
		return keys, fmt.Errorf("%w: %w", ErrInvalidName, errAmbiguous)
	// Else the key becomes the tag of the others as a whole. With a '}' in it
	// the tag would end there, and the slot would be another.
	case n.clustered && !tagged && strings.Contains(keys.lock, "}"):
		return keys, fmt.Errorf("%w: %w", ErrInvalidName, errUntaggable)
	}
	keys.args = [3]any{keys.lock, keys.fence, keys.queue}
	return keys, nil
}

var errAmbiguous = errors.New("the keys that belong to it can be those of another name")

// ambiguous tells whether a key, or one that belongs to it, can be one that
// belongs to another name with the same prefix. That takes a hash tag in the
// name, or an empty prefix.
func ambiguous(key, prefix string) bool {
	isKey := func(s string) bool { return len(s) > len(prefix) && strings.HasPrefix(s, prefix) }
	isTag := func(s string) bool { // made of an untagged key, see newLockKeys
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

// hasHashTag follows the Redis Cluster specification, "Hash tags".
func hasHashTag(key string) bool {
	_, behind, found := strings.Cut(key, "{")
	return found && strings.Index(behind, "}") > 0
}
