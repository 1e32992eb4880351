// Package redislock provides mutual-exclusion locks on Redis, for goroutines
// and processes that share a Redis server.
//
// # What it promises
//
//   - At most one holder with an unexpired lease per name, on one Redis
//     primary. For several primaries see [NewQuorum].
//   - A holder that dies loses the lock when its lease ends, at most one TTL
//     after the last renewal.
//   - Only the holder's token releases or extends a lock: a single atomic
//     script compares the token and changes the key.
//   - A holder learns of the end in time: its context ends before the lease can
//     have ended in Redis, even while Redis does not answer.
//   - Every acquisition has a fencing token, and the fencing tokens of one name
//     only grow.
//   - Waiters are served in order of arrival: goroutines of one Locker in the
//     order of their calls, processes in turns. Waiting, below, lists the
//     exceptions.
//
// # What it does not promise
//
//   - It cannot stop code that ignores its context. A process may be paused by
//     its garbage collector, its hypervisor or a debugger until its lease has
//     ended. It then continues for a moment when it resumes, while another
//     process holds the lock. No lock can prevent that. A resource that refuses
//     an old fencing token can: see [Lock.Fence].
//   - A lock does not survive the loss of data on the primary: a restart
//     without persistence, a failover to a replica that had not received the
//     key, an eviction, FLUSHALL. The holder learns of it at its next renewal
//     or request. Until then a second holder is possible. [NewQuorum] holds a
//     lock on several primaries, and the lock survives the loss of a minority.
//   - Locks are not reentrant: a holder that acquires the same name again waits
//     for itself, until its ctx ends.
//
// # Concepts
//
// A [Locker] represents one Redis and acquires locks by name. The Redis key is
// the Locker's prefix followed by the name. [Locker.WithLock] is the usual
// method: it waits for the lock, renews it while a function runs, and always
// releases it. [Locker.Acquire] waits for the lock and returns it.
// [Locker.TryAcquire] does not wait. [Locker.Resume] adopts a lock by its token
// (the first holder gives it up with [Lock.Detach]). [Locker.Inspect] reports
// the current holder.
//
// A [Lock] is one acquisition. Its token, a random UUID, is the value of the
// key. Redis knows the owner by the token alone, so any program that has the
// token can release the lock.
//
// The lease is the time for which Redis keeps the key. Its length is the TTL
// that the caller asks for. The process trusts the lock for a shorter time, the
// validity: it counts from before the request was sent, and is shorter than the
// TTL by 1 % and 2 ms. [Lock.Until] is its end. The lock is lost when the
// validity ends, or when Redis answers that the key does not hold the token:
// [Lock.Done] is closed, [Lock.Err] Is [ErrLost], and contexts made by
// [Lock.Context] end. A lost lock never comes back. A new acquisition has a new
// token and a greater fencing token.
//
// The watchdog renews the lease every third of the TTL until the lock is
// released or lost. It is on in WithLock and off elsewhere, unless
// [WithWatchdog] or [WithoutWatchdog] is given. A failed renewal is repeated
// until the validity ends. Without a watchdog no request is sent while the lock
// is held, so a key that was deleted or evicted is noticed only by
// [Lock.Extend] and [Lock.Release].
//
// The fencing token, [Lock.Fence], is minted in the script that acquires the
// lock. The program sends it to the resource with every write.
//
// # Contexts and blocking
//
// The ctx of Acquire, TryAcquire and Resume limits the call and not the
// holding. The ctx of WithLock limits both. Every call returns within 50 ms of
// the end of its ctx, whatever Redis or the socket does. Only WithLock can take
// longer: for its function, and for the release that follows, which takes 750
// ms at most if ctx has ended, and otherwise the rest of the lease or 5 s,
// whichever is shorter.
//
// If Redis does not answer and ctx does not end, the error is returned after
// three tries. One try waits for its reply for the length of the TTL, but for
// at least one second and at most five. Release, and every call except Acquire
// with a ctx that cannot end, use the client's time-outs instead. (Release with
// such a ctx does not try again once the lease is over.) An Acquire that is
// already waiting for a holder also waits for Redis, until its ctx ends.
//
// The ctx must not be nil: as in the standard library, a nil ctx is a
// programming error and panics. So is a call on a nil or zero Locker. A nil or
// zero Lock returns errors instead.
//
// An acquisition that returns an error leaves no lock behind. A request without
// a reply may still have been executed. It is undone in the background: at
// once, when the request ends, and for another 15 seconds if it may still be
// executed. These seconds count from the first attempt that was sent. While
// nothing can be sent, undoing continues for at most as long as the lease of
// the lock would last. The same holds for a release by WithLock that fails.
// What cannot be undone in that time, or because the client was closed, ends
// with its lease.
//
// # Waiting
//
// The release hands a lock over. Goroutines of one Locker that wait for the
// same name form a line, in the order of their calls. Only the first of the
// line is known to Redis, by a ticket in the name's queue. The script that
// releases the lock gives it to the first ticket, and publishes the grant to
// the inbox of that process, a pub/sub channel. The script also takes the next
// ticket of the releasing process and appends it to the queue. So processes
// take turns, no process polls, and a critical section with a waiting goroutine
// of the same Locker costs one command.
//
// Some changes are not pushed: a message was lost, a lease has ended, the key
// was deleted by hand or by another library. So the first goroutine of a line
// also asks Redis, after the shortest of these: the rest of the holder's lease;
// the time that it has waited so far (100 ms at least, less some jitter); the
// poll interval ([WithPollInterval]). It asks at once when its subscription was
// restored. Where Redis refuses the subscription, it asks after pauses that
// grow from 10 to 500 ms. Processes that poll have no turns. A process whose
// own goroutines hand the lock to each other leaves the lock free for 100 ms
// every quarter of a second, so that polling processes can find it free.
//
// The order between processes counts from the first request that carries a
// ticket. It does not hold for a process that cannot subscribe (it has no place
// in the queue, and may be overtaken without end), for one whose subscription
// is cut when its turn comes, where the queue is lost, and where the server's
// clock is set back. Programs that lock the same key with another library are
// not in the queue.
//
// # Goroutines and connections
//
// There is nothing to close. A lock that is held and a goroutine that waits
// occupy no connection. A request borrows one from the client's pool for one
// round trip. While two round trips of a Locker are under way (on a Cluster,
// two to the same node), further requests are batched, up to 64 in a batch. A
// request that has waited for 25 ms is sent alone.
//
// A request for which the client has no connection is not sent, and the error
// says so. In a pool whose connections block elsewhere (BLPOP, XREAD with
// BLOCK) a lock cannot be renewed and is lost. Use a separate client for locks
// in that case.
//
// While a goroutine waits, and up to 4 seconds longer, a Locker has one
// goroutine and one connection outside the pool for its inbox; on a Cluster one
// for each node on which a name is waited for. The other goroutines are one for
// each round trip under way, which may stay until the client's time-outs even
// if the callers have left; one for each renewal under way; and one for each
// release that continues in the background. A request to a server that is near
// needs no goroutine, if the client has ContextTimeoutEnabled, and no hooks,
// OnConnect or provider of credentials: the caller makes it, for at most 15 ms.
// Abandoned acquisitions are undone by two round trips at a time for each
// server, each with up to 1,024 of them, and by four while the server does not
// answer. These are not counted as round trips of the Locker, so that no request
// waits behind them. A timer watches the end of a lease.
//
// All methods may be called from any number of goroutines.
//
// # Hooks of the client
//
// Requests pass through the hooks of the client. A hook that changes the
// arguments of a command affects that command alone: each transmission of a
// request, including the repetition with the source of its script, starts from
// unchanged arguments. A hook that changes keys must change those of eval and
// evalsha, and in the same way each time. Use [WithPrefix] for a prefix.
//
// A request that is sent alone has the values of its caller's context. A batch
// has none, since it belongs to several callers, and a renewal has none either.
// The undoing of an abandoned acquisition may be sent in a batch. So a hook
// must not rely on a value of the context, such as a tenant, to find the key.
//
// A hook sees the arguments of the commands, and so the whole token. Error
// texts of this package never contain a whole token, but the text of an error
// that a hook returns is passed on unchanged. A hook must not put the arguments
// of eval and evalsha into its errors.
//
// If a hook, a mock, or a method of a wrapper panics or calls runtime.Goexit,
// the calls whose request it was given fail with an error that contains the
// panic's text, and one line at level Error is logged. With a context that
// cannot end the request is sent in the caller's own goroutine. A panic then
// continues there, and what the request may have acquired is released in the
// background.
//
// # Clocks
//
// The clocks of the process and of the Redis server need not agree, but must
// run at the same speed, within 1 %. Redis expires keys by its wall clock: if
// that is set forward while a lock is held, the lease ends early and the holder
// is not told in time.
//
// A grant that is pushed to a waiting process has one more condition: between
// the last request of that process and the grant, the server's clock is not set
// forward and runs at most 0.1 % faster. Otherwise the delay of the message is
// not subtracted from the lease.
//
// In the process, both the wall clock and the monotonic clock must say that the
// lock is valid. So setting the clock back does not prolong a lock, and neither
// does suspending the machine. After a suspension of the machine, or of the
// process (SIGSTOP, a debugger), [Lock.Err] reports the end at once, because it
// reads both clocks. Done and contexts follow within a second, so their
// Err may still be nil when the process resumes. Call Lock.Err immediately
// before an irreversible step. A pause between that call and the step remains
// possible; only a fencing token protects against it.
//
// # Data in Redis
//
//	lock:order:42          string: the token, or token, space, metadata; or a mark, which
//	                       begins with "kept:" or "roll:" and is not a token
//	{lock:order:42}:fence  string: the last fencing token, in decimal digits
//	{lock:order:42}:queue  sorted set: a ticket for each process that waits
//	lock:inbox:...         pub/sub channel, one for each Locker while it waits
//
// The key of a lock is prefix + name, and expires with the lease. The fence is
// kept for an hour after the last acquisition or renewal, see
// [WithFenceRetention]. A fencing token is the greater of the last one plus one
// and the server's time in microseconds since 1970. The queue is removed with
// its last ticket, or expires 10 minutes after the last addition (three poll
// intervals if that is longer).
//
// If the lock's key has a hash tag, the other keys have the same one: a{b}c
// goes with a{b}c:fence. Names whose keys could be those of another name are
// refused with [ErrInvalidName]: {t}:fence and {t}:queue, and with an empty
// prefix {x}.
//
// SET key token NX PX makes the same key. Programs and libraries that lock with
// that command exclude holders of this package, and are excluded by them.
package redislock
