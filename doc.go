// Package redislock is a mutual-exclusion lock that lives in Redis, for
// processes that have nothing else in common.
//
// # What it promises
//
//   - At most one holder with an unexpired lease per name, on one Redis primary; for
//     more than one see [NewQuorum].
//   - A holder that dies loses the lock when its lease ends, at most one TTL
//     after it was last renewed.
//   - Nobody releases or extends a lock that is not theirs: both compare the
//     holder's token and act on the key in one atomic script.
//   - A holder learns of the end in time: its context ends before the lease can
//     have ended in Redis, also while Redis is silent.
//   - Every acquisition carries a fencing token, and the fencing tokens of one
//     name only ever grow.
//   - Who waits is served first come, first served: goroutines of one Locker in
//     the order of their calls, processes in turns. See Waiting for what breaks
//     the order.
//
// # What it does not promise
//
//   - It cannot stop code that ignores its context. A process that is paused, by
//     its garbage collector, its hypervisor or a debugger, past the end of its
//     lease goes on for a moment when it wakes up, while somebody else holds the
//     lock. No lock can prevent that. A resource that refuses an old fencing
//     token can: see [Lock.Fence].
//   - A lock does not outlive the loss of data on the primary: a restart without
//     persistence, a failover to a replica that had not received the key yet, an
//     eviction, FLUSHALL. The holder hears of it at its next renewal or request;
//     until then a second holder is possible. [NewQuorum] holds a lock on several
//     primaries, and outlives the loss of a minority of them.
//   - There is no reentrance: a holder that acquires the same name again waits for
//     itself.
//
// # The pieces
//
// A [Locker] stands for one Redis and hands out locks by name. The name with
// the Locker's prefix before it is the Redis key. [Locker.WithLock] is the
// usual way: it waits, runs a function, renews meanwhile, and releases whatever
// happens. [Locker.Acquire] waits and leaves the rest to the caller,
// [Locker.TryAcquire] does not wait, [Locker.Resume] adopts a lock by its token
// (its first holder gives it up with [Lock.Detach]), and [Locker.Inspect]
// reports the current holder.
//
// A [Lock] is one acquisition. It is marked by a token, a random UUID, which is
// the value of the key. Whoever knows the token is the owner as far as Redis
// can tell.
//
// The lease is the time for which Redis keeps the key; its length is the TTL
// that the caller asks for. The process itself trusts the lock for a little
// less, the validity: it is counted from before the request was sent, and is
// shorter than the TTL by 1 % and 2 ms. [Lock.Until] is its end. When it comes,
// or when Redis answers that the key is not ours, the lock is lost: [Lock.Done]
// is closed, [Lock.Err] Is [ErrLost], contexts made by [Lock.Context] end. That
// is final. A new acquisition is needed, with a new token and a greater fencing
// token.
//
// The watchdog renews the lease every third of the TTL until the lock is
// released or lost. It is on in WithLock and off elsewhere, unless
// [WithWatchdog] or [WithoutWatchdog] says otherwise. Failed renewals are tried
// again until the validity ends. Without a watchdog nobody asks Redis while the
// lock is held, so a key that was deleted or evicted is noticed only by
// [Lock.Extend] and [Lock.Release].
//
// The fencing token, [Lock.Fence], is minted in the script that acquires the
// lock, and goes to the resource along with every write.
//
// # Contexts and blocking
//
// The ctx given to Acquire, TryAcquire or Resume limits the call, never the
// holding. The ctx given to WithLock limits both. Every call returns within 50
// ms of the end of its ctx, whatever Redis or the socket does; only WithLock
// takes longer, if its function does, and for the release that follows (750 ms
// at most, and under a ctx that goes on what is left of the lease, or 5 s).
// Where Redis does not answer and ctx does not end, the error is returned after
// three tries. One try waits for its reply for as long as the TTL, but one
// second at least and five at most; Release, and any call but Acquire whose ctx
// cannot end, leaves that to the client's time-outs (Release under such a ctx
// does not try again once the lease is over). Only an Acquire that is already
// waiting for a holder waits for Redis too, until its ctx ends.
//
// An acquisition that returns an error leaves no lock behind. A request whose
// reply did not arrive may have been executed all the same; it is undone in the
// background: at once, when the request ends, and for 15 seconds from then on
// if it may still be executed. These seconds count from the first attempt that
// was sent. While nothing can be sent, undoing goes on, but no longer than the
// lease of the lock would last. So it is with WithLock's release if it fails.
// What cannot be undone in that time, or because the client was closed, ends
// with its lease.
//
// # Waiting
//
// A lock is handed over by the release itself. Goroutines of one Locker that
// wait for the same name stand in a line, first come, first served. Only the
// first of the line is known to Redis, by a ticket in the name's queue. The
// script that releases the lock gives it to the first ticket, and publishes
// that to the inbox of its process, a pub/sub channel. It also takes along the
// next ticket of the releasing process, which goes to the end of the queue. So
// processes take turns, nobody polls, and where goroutines wait in line a
// critical section costs one command.
//
// What a push does not tell (a message was lost, a lease has ended, the key was
// deleted by hand or by another library) is found by asking: the first of a
// line asks again after the rest of the holder's lease, after as long again as
// it has waited (100 ms at least, less some jitter), or after the poll interval
// ([WithPollInterval]), whichever is shortest, and at once when its
// subscription was restored. Where Redis refuses the subscription, it asks
// after pauses that grow from 10 to 500 ms. Processes that wait in this way
// have no turns; one whose own goroutines hand the lock to each other leaves it
// free for 100 ms every quarter of a second, and others may find it.
//
// The order between processes counts from the first question that carries a
// ticket. It is broken where a process cannot subscribe (it has no place, and
// may be overtaken without end), where its subscription is cut when its turn
// comes, where the queue is lost, and where the server's clock is set back.
// Programs that lock the same key with another library do not stand in the
// queue.
//
// # Goroutines and connections
//
// There is nothing to close. A lock that is held and a goroutine that waits
// occupy no connection. Requests borrow one from the client's pool for one
// round trip. While two round trips of a Locker are under way (on a Cluster,
// two to the same node) further requests gather, and then travel together, at
// most 64 at a time; one that has waited for 25 ms leaves by itself.
//
// A request for which the client has no connection is not sent, and the error
// says so. In a pool whose connections block elsewhere (BLPOP, XREAD with
// BLOCK) a lock cannot be renewed and is lost: give locks a client of their own
// then.
//
// While somebody waits, and up to 4 seconds longer, a Locker has one goroutine
// and one connection beside the pool for its inbox; on a Cluster one for each
// node on which a name is waited for. Other goroutines run while a round trip
// is under way, one for each, even if the callers have left, as long as the
// time-outs of the client allow; while a lock with a watchdog is held, one per
// lock; and while a release that was not waited for is completed. Abandoned
// acquisitions are undone by two round trips at a time for each server, each
// with up to 1,024 of them, and by four while the server is silent; those do
// not count as round trips of the Locker, so that nothing waits behind them.
// The end of a lease is watched by a timer.
//
// All methods may be called from any number of goroutines.
//
// # Hooks of the client
//
// Requests pass the hooks of the client. What a hook does to the arguments of a
// command concerns that command alone: each sending of a request, the
// repetition with the source of its script too, starts from arguments that
// nobody has changed. A hook that changes keys must change those of eval and
// evalsha, and in the same way each time; a prefix is better given with
// [WithPrefix].
//
// A request that travels by itself has the values of its caller's context. A
// batch has none, since it belongs to several callers; nor has a renewal. What
// undoes an abandoned acquisition may travel in a batch. So a hook must not
// rely on a value of the context, a tenant for example, to find the key.
//
// A hook, a mock, or a method of a wrapper that panics, or calls
// runtime.Goexit, fails the calls whose request it was given, with an error
// that has the panic's text, and one line at level Error in the log. Where the
// request travels in the caller's own goroutine, which it does under a context
// that cannot end, a panic goes on there instead, and what the request may have
// acquired is released in the background.
//
// # Clocks
//
// The clocks of the process and of the Redis server need not agree, but must
// run at the same speed, within 1 %. Redis expires keys by its wall clock: if
// that is set forward while a lock is held, the lease ends early and the holder
// is not told in time.
//
// A grant that is pushed to a waiting process needs one thing more: that the
// server's clock is not set forward, and runs at most 0.1 % faster, between the
// last question of that process and the grant. Else the delay of the message is
// not taken off the lease.
//
// On the side of the process the wall clock and the monotonic clock must both
// say that the lock is valid, so setting its clock back does not prolong a
// lock, and neither does suspending the machine. After a suspension Err knows
// at once; Done and contexts follow within a second.
//
// # What stands in Redis
//
//	lock:order:42          string: the token, or token, space, metadata; or a mark, which is
//	                       nobody's token: "kept:" or "roll:", and more
//	{lock:order:42}:fence  string: the last fencing token, in decimal digits
//	{lock:order:42}:queue  sorted set: a ticket for each process that waits
//	lock:inbox:...         pub/sub channel, one for each Locker while it waits
//
// The key of a lock is prefix + name, and expires with the lease. The fence is
// kept for an hour after the last acquisition or renewal, see
// [WithFenceRetention]. A fencing token is the greater of the last one plus one
// and the server's time in microseconds since 1970. The queue goes with its
// last ticket, or 10 minutes after one was put in (three poll intervals if that
// is longer).
//
// If the lock's key has a hash tag of its own, its companions have it too:
// a{b}c goes with a{b}c:fence. Names whose keys could be those of another name
// are refused with [ErrInvalidName]: {t}:fence and {t}:queue, and with an empty
// prefix {x}.
//
// SET key token NX PX makes the same key. Programs that lock by that recipe,
// and libraries that do, exclude holders of this package and are excluded by
// them.
package redislock
