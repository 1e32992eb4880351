// Package redislock is a mutual-exclusion lock that lives in Redis, for
// processes that have nothing else in common.
//
// # What it promises
//
//   - At most one holder with an unexpired lease per name, on one Redis primary.
//   - A holder that dies loses the lock when its lease ends, at most one TTL
//     after it was last renewed.
//   - Nobody releases or extends a lock that is not theirs: both compare the
//     holder's token and act on the key in one atomic script.
//   - A holder learns of the end in time: its context ends before the lease can
//     have ended in Redis, also while Redis is silent.
//   - Every acquisition carries a fencing token, and the fencing tokens of one
//     name only ever grow.
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
//     until then a second holder is possible.
//   - There is no order among processes that wait, and no reentrance: a holder
//     that acquires the same name again waits for itself.
//
// # The pieces
//
// A [Locker] stands for one Redis and hands out locks by name. The name with the
// Locker's prefix before it is the Redis key. [Locker.WithLock] is the usual way:
// it waits, runs a function, renews meanwhile, and releases whatever happens.
// [Locker.Acquire] waits and leaves the rest to the caller, [Locker.TryAcquire]
// does not wait, [Locker.Resume] adopts a lock by its token, and [Locker.Inspect]
// looks who is the holder.
//
// A [Lock] is one acquisition. It is marked by a token, a random UUID, which is
// the value of the key. Whoever knows the token is the owner as far as Redis can
// tell.
//
// The lease is the time for which Redis keeps the key; its length is the TTL that
// the caller asks for. The process itself trusts the lock for a little less, the
// validity: it is counted from before the request was sent, and is shorter than
// the TTL by 1 % and 2 ms. [Lock.Until] is its end. When it comes, or when Redis
// answers that the key is not ours, the lock is lost: [Lock.Done] is closed,
// [Lock.Err] Is [ErrLost], contexts made by [Lock.Context] end. That is final. A
// new acquisition is needed, with a new token and a greater fencing token.
//
// The watchdog renews the lease every third of the TTL until the lock is released
// or lost. It is on in WithLock and off elsewhere, unless [WithWatchdog] or
// [WithoutWatchdog] says otherwise. Failed renewals are tried again until the
// validity ends. Without a watchdog nobody asks Redis while the lock is held, so
// a key that was deleted or evicted is noticed only by [Lock.Extend] and
// [Lock.Release].
//
// The fencing token, [Lock.Fence], is minted in the script that acquires the
// lock, and goes to the resource along with every write.
//
// # Contexts and blocking
//
// The ctx given to Acquire, TryAcquire or Resume limits the call, never the
// holding. The ctx given to WithLock limits both. Every call returns within 50 ms
// of the end of its ctx, whatever Redis or the socket does; only WithLock takes
// longer, if its function does, and for the release that follows (750 ms at
// most). A ctx without an end is served as well: one try waits for its reply for
// as long as the TTL, but one second at least and five at most, and after three
// tries the error is returned. Only an Acquire that is already waiting for a
// holder waits for Redis too, until its ctx ends.
//
// An acquisition that returns an error leaves no lock behind. A request whose
// reply did not arrive may have been executed all the same; it is undone in the
// background, for at most 15 seconds. What cannot be undone in that time ends
// with its lease.
//
// # Waiting
//
// Goroutines of one Locker that wait for the same name stand in a queue, first
// come, first served. The first of them asks Redis again and again, after pauses
// that grow from 10 to 500 ms, with jitter, and are never longer than what is
// left of the holder's lease. The others cost no traffic.
//
// # Goroutines and connections
//
// There is nothing to close. A Locker owns no connection: a request borrows one
// from the client's pool for one round trip, and a lock that is held occupies
// none. Goroutines run while a call is under way, one per request; while a lock
// with a watchdog is held, one per lock; while a release that was not waited for
// or an abandoned acquisition is completed, for at most 15 seconds; and while a
// request that was abandoned waits for its socket, as long as the time-outs of the
// client allow. The end of a lease is watched by a timer.
//
// All methods may be called from any number of goroutines.
//
// # Clocks
//
// The clocks of the process and of the Redis server need not agree, but must run
// at the same speed, within 1 %. Redis expires keys by its wall clock: if that is
// set forward while a lock is held, the lease ends early and the holder is not
// told in time. On the side of the process the wall clock and the monotonic clock
// must both say that the lock is valid, so setting its clock back does not prolong
// a lock, and neither does suspending the machine. After a suspension Err knows at
// once; Done and contexts follow within a second, or a tenth of the TTL if that is
// longer.
//
// # What stands in Redis
//
// The key of a lock is a string, prefix + name, whose value is the token, or the
// token, a space and the metadata. It expires with the lease. The fence is a
// second string, {prefix + name}:fence, which holds the last fencing token in
// decimal digits and is kept for an hour after the last acquisition or renewal,
// see [WithFenceRetention]. If the lock's key has a hash tag of its own, it is
// prefix + name + :fence. A fencing token is the greater of the last one plus one
// and the server's time in microseconds since 1970.
//
// SET key token NX PX makes the same key. Programs that lock by that recipe, and
// libraries that do, exclude holders of this package and are excluded by them.
package redislock
