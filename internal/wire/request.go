package wire

import (
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Request is one script with its arguments. It is never handed to the client,
// whose hooks may change what they get: each sending gets a copy (see Once).
type Request struct {
	Script *Script
	words  [mostWords]any // the command: EVALSHA, the script's name, the number of keys, the keys, the arguments
	length int            // of the command

	Limit     time.Duration // how long one try waits for its reply
	Alone     bool          // it shares no round trip
	Departure Departure     // is told when it is sent; may be nil
	// Acknowledged reads a reply: whether replicas have to acknowledge what it
	// says. It is nil for a request that needs no acknowledgement.
	Acknowledged func(reply string) (bool, error)
	// FirstKeyWillDo says that the script can do with its first key alone, and
	// is asked for that while a cluster moves the slot: a script gets TRYAGAIN
	// then as long as some of its keys exist on one node and others do not.
	// Others have to wait.
	FirstKeyWillDo bool

	progress *atomic.Int32 // of its call; nil until it has one
}

// Departure is told that a request is about to be written to a connection: from
// then on it may be executed. It may be told more than once, and in any
// goroutine.
type Departure interface{ Departs() }

// Unobserved is for requests of which only the error is to say whether they
// were sent: what was not has nothing to undo.
type Unobserved struct{}

// Departs does nothing.
func (Unobserved) Departs() {}

// mostWords is the longest command: three keys and eight arguments. A longer
// request panics when it is made.
const mostWords = 3 + 3 + 8

// Request makes a request to run the script. args is not kept.
func (s *Script) Request(limit time.Duration, keys []any, args ...any) Request {
	r := Request{Script: s, Limit: limit, length: 3 + len(keys) + len(args)}
	r.words[0], r.words[1], r.words[2] = "evalsha", s.name, len(keys)
	copy(r.words[3:], keys)
	copy(r.words[3+len(keys):r.length], args)
	return r
}

// line is the command. It is a part of the request, and not for the client.
func (r *Request) line() []any { return r.words[:r.length:r.length] }

// WhileMoving is the request that takes the place of r while its slot is being
// moved, if err says that it is, and if there is one.
func (r *Request) WhileMoving(err error) (instead Request, possible bool) {
	if !r.FirstKeyWillDo || !isSplit(err) {
		return Request{}, false
	}
	instead = r.Script.Request(r.Limit, r.Keys()[:1], r.Args()...)
	instead.Departure = r.Departure
	return instead, true
}

// Key is the first key.
func (r *Request) Key() string { return r.words[3].(string) }

// Keys are a part of the request.
func (r *Request) Keys() []any { return r.line()[3 : 3+r.words[2].(int)] }

// Args are a part of the request as well.
func (r *Request) Args() []any { return r.line()[3+r.words[2].(int):] }

// departing is an argument that tells when it is about to be written to a
// connection. That a request is handed to the client does not say so much: it
// may find no connection.
type departing struct {
	text  []byte
	to    Departure
	place [20]byte // for the text, if it is a number
	told  atomic.Bool
}

// tell makes the word one that tells.
func (a *departing) tell(to Departure, word *any) {
	switch value := (*word).(type) {
	case int64:
		a.text = strconv.AppendInt(a.place[:0], value, 10)
	case string:
		a.text = []byte(value)
	default:
		return // the reply says so, too, but later
	}
	a.to = to
	*word = a
}

// MarshalBinary is what go-redis asks when it writes.
func (a *departing) MarshalBinary() ([]byte, error) {
	a.told.Store(true)
	a.to.Departs()
	return a.text, nil
}

// stayed tells whether the command with these words was surely not written:
// nobody has put another word in the place of this one, and it was never asked
// for its text.
func (a *departing) stayed(words []any) bool {
	return a.to != nil && words[len(words)-1] == any(a) && !a.told.Load()
}

func (a *departing) String() string { return string(a.text) }

// counted is an argument that counts how often it was written to a connection.
type counted struct {
	text  string
	times int
}

// MarshalBinary is what go-redis asks when it writes.
func (a *counted) MarshalBinary() ([]byte, error) {
	a.times++
	return []byte(a.text), nil
}

func (a *counted) String() string { return a.text }

// explains tells whether err is why a command failed whose argument this is. A
// cluster's client sends what was redirected, or found no connection, once
// more. If it then has no reply, but its neighbours in the pipeline have failed
// before it, go-redis leaves the error of the earlier try in its place, by
// which nothing was executed.
func (a *counted) explains(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, asking := redis.IsAskError(err)
	var answer redis.Error
	switch {
	case moved || asking:
		return a.times <= 1
	case errors.As(err, &answer):
		return true
	}
	return a.times == 0 || MaybeExecuted(err)
}
