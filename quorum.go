package redislock

// How a quorum works. It follows what Redis's documentation calls Redlock
// ("Distributed Locks with Redis"): the lock is held by whoever has its token
// on a majority of N servers that know nothing of each other. To that it adds
// fences that grow, by the two phases of a register of Attiya, Bar-Noy and
// Dolev ("Sharing memory robustly in message-passing systems"): read the
// greatest from a majority, and write it to a majority before anybody relies on
// it.
//
//	quorum.go        which servers there are
//	quorum_claim.go  what one token has, or may yet get, on each node
//	quorum_vote.go   one request of the quorum, from the first vote to the result
//	internal/poll    a request made of many servers at once; which are silent, or one
//
// # Fences
//
// An acquisition succeeds only once its fence F, the greatest that a majority
// has minted for it, is the record of a majority W, and at each node of W was
// so while the key held its token (lua/raise.lua). A later acquisition is
// granted by a majority that has a node k in common with W. At k its grant
// comes after the write of F: before it, the token of the later one would have
// stood there, and had to go to make place for ours, by expiry or by being
// given back, and then the other acquisition was not later. Records never fall,
// and a grant mints more than the record: so its fence, the greatest of all it
// was given, is above F. This needs no clock. If a node loses its records (a
// restart without persistence), the clock of the node takes their place, as on
// a single Redis.
//
// # One token, several attempts
//
// A call may need several attempts, and all have the same token. So a vote that
// one attempt got without hearing of it counts for the next, since acquiring is
// idempotent for each token. What an attempt without a majority was granted is
// handed back before the call pauses: contenders that each kept a minority
// would block each other for a TTL. A request that hands back may be executed
// late, in the middle of the next attempt, and must not take a vote away that
// has been counted. It therefore names a bound, the greatest fence the attempt
// was given, and frees the node only while its record is not above
// (lua/handback.lua). The next attempt chooses its F above all bounds so far,
// and counts a node only when its record is at least F. From then on nothing
// that was handed back before can have an effect there.
//
// Nodes that did not answer are left alone until the call as a whole has failed
// (a release under the same token could not be told from a hand-back that comes
// late). Then they are looked after for as long as any undoing.

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/poll"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// The default for how long a node may take to answer one request.
const (
	longestNodeTimeout  = 50 * time.Millisecond
	shortestNodeTimeout = 5 * time.Millisecond
)

// NewQuorum returns a Locker that holds a lock once a majority of the given
// servers, floor(N/2)+1 of N, has granted it (Redlock). As long as a majority
// of the servers works, so do its locks. The servers must be independent
// primaries, not replicas of one another. Use three or five servers (or one):
// two tolerate no failure, and four tolerate the loss of one, as three do. The
// majority is that of the configured servers, not of those that answer.
//
// The methods of a Locker and of its Locks make their promises for the majority.
// The differences from one server:
//
//   - Each request goes to all servers at the same time, and is decided as soon as
//     enough have answered. A server has the node time-out to do so: [WithNodeTimeout],
//     by default 50 ms, or a twentieth of the TTL if that is shorter, but at least 5 ms.
//   - An acquisition takes two round trips, since it writes its fence back to a majority;
//     with one server it takes one. Everything else takes one, but Resume up to two. One
//     attempt ends within two node time-outs, and so does TryAcquire with all its attempts.
//   - An acquisition that fails is undone on every server: within the same time on those
//     that can be reached, otherwise in the background, as for one server.
//   - [ErrNotAcquired] says that so many servers are taken that the others make no
//     majority, whether by a holder or by several callers at the same time. If it takes
//     servers that do not answer to make one, that is an outage, and the error says which
//     they are, and why.
//   - Waiting is by polling, after 10 to 500 ms. A release notifies only the first in line
//     of the same Locker, which asks at once. Processes have no turns. An Acquire that
//     knows that some servers are taken waits for those that are down.
//   - A renewal and Extend succeed if a majority still holds the token. In the background
//     they then also acquire the lock on servers where it is free, because these were
//     restarted or could not be reached before. A lock that was lost on a majority is
//     never recreated.
//   - Inspect and TTL report what a majority agrees on, and the time for which a majority
//     will hold the lock. Info.Waiters is 0.
//
// A server that forgets a lock (a restart without persistence, an eviction,
// FLUSHALL) can grant it again. If the holder has just a bare majority, that
// makes a second one. Only an fsync for every write, or a restart that is delayed
// by the longest TTL, prevents that. The holder learns of it at its next
// renewal. Fences grow as long as a server keeps its records, or its clock is
// not behind those of the others.
//
// NewQuorum asks each server for its run id (INFO server). It returns an error
// if one server is listed twice, or refuses the command; if there are no
// clients, or one of them is nil, listed twice, a [redis.Ring], or a
// [redis.ClusterClient], which represents many primaries, wrapped or not (see
// [New]); and with [WithReplicas]. It blocks for at most a second. A server
// that does not answer is no error: it is asked again before its first vote
// counts, and has no vote if it turns out to be listed twice.
//
// While a request is under way the Locker has one goroutine for each server,
// and one that counts the votes. The goroutine of a server that does not answer
// stays until the time-outs of its client. After a second without an answer a
// server is asked only once in 200 ms, until it answers.
func NewQuorum(clients []Client, opts ...Option) (*Locker, error) {
	if err := checkClients(clients); err != nil {
		return nil, fmt.Errorf("redislock: NewQuorum: %w", err)
	}
	o := newOptions(opts)
	if o.replicas > 0 {
		return nil, errors.New("redislock: NewQuorum: WithReplicas is for one primary; the servers of a quorum need no replicas")
	}
	q := &quorum{opts: o}
	var servers []poll.Server
	for _, client := range clients {
		d, _ := deploymentOf(client) // checked before
		s := newSingle(d.engine(client, o), o)
		servers = append(servers, poll.Server{Addr: addrOf(client), Client: client, Conn: s.conn})
		q.undoings = append(q.undoings, &s.undoings)
	}
	q.nodes = poll.New(servers, o.reports)
	if err := q.nodes.Identify(); err != nil {
		return nil, fmt.Errorf("redislock: NewQuorum: %w", err)
	}
	return newLocker(q, false, o), nil
}

func checkClients(clients []Client) error {
	if len(clients) == 0 {
		return errors.New("a client is needed")
	}
	seen := make(map[any]int)
	for i, client := range clients {
		if isNil(client) {
			return fmt.Errorf("client %d is nil", i+1)
		}
		switch d, err := deploymentOf(client); {
		case err != nil:
			return fmt.Errorf("client %d is %w", i+1, err)
		case d.cluster != nil:
			return fmt.Errorf("client %d is a *redis.ClusterClient or a wrapper of one; a quorum needs single primaries, which do not fail over", i+1)
		}
		if !reflect.ValueOf(client).Comparable() { // all the way down: it may be a wrapper
			continue
		}
		if first, twice := seen[client]; twice {
			return fmt.Errorf("clients %d and %d are the same", first, i+1)
		}
		seen[client] = i + 1
	}
	return nil
}

// quorum is the backend on several servers. It makes each request of all of
// them, and takes the answer that has the votes of the majority.
type quorum struct {
	opts     *options
	nodes    *poll.Nodes
	undoings []*undoings // by node
}

// addrOf is for error texts.
func addrOf(client Client) string {
	if c, ok := client.(interface{ Options() *redis.Options }); ok {
		return c.Options().Addr
	}
	return ""
}

// nodeTimeout is how long a node may take for a request about a lock with this
// TTL; 0: one that asks for no lease, and so is not late when a lease is over.
func (q *quorum) nodeTimeout(ttl time.Duration) time.Duration {
	switch {
	case q.opts.nodeTimeout > 0:
		return q.opts.nodeTimeout
	case ttl == 0:
		return longestNodeTimeout
	}
	return min(max(ttl/20, shortestNodeTimeout), longestNodeTimeout)
}

// direct is never possible: all servers are asked at the same time.
func (q *quorum) direct() *wire.Direct { return nil }

// home is nowhere: nobody is told of a release.
func (q *quorum) home(string) (addr string, on wire.Subscriber) { return "", nil }

// pushed does nothing, therefore.
func (q *quorum) pushed(string) {}
