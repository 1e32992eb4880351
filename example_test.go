package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock"
)

// exampleServer is a Redis in memory, so that the examples run anywhere. Its
// keys expire only where an example lets time pass.
type exampleServer struct{ *miniredis.Miniredis }

// exampleRedis stands for your own Redis and redis.NewClient.
func exampleRedis() (*redis.Client, exampleServer) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		panic(err)
	}
	return redis.NewClient(&redis.Options{Addr: m.Addr()}), exampleServer{m}
}

// expire lets the lease of every lock in Redis end, as if this process had been
// paused meanwhile: it still believes in its lock.
func (s exampleServer) expire(lease time.Duration) { s.FastForward(lease) }

// WithLock waits for the lock, runs the function while renewing the lease, and
// releases the lock whatever happens.
func ExampleLocker_WithLock() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	pack := func(_ context.Context, order string, fence int64) error {
		fmt.Println("packing", order, "with a fence:", fence > 0)
		return nil
	}
	err := locker.WithLock(ctx, "order:42", 30*time.Second, func(ctx context.Context, lock *redislock.Lock) error {
		return pack(ctx, "order 42", lock.Fence())
	})
	fmt.Println("error:", err)
	fmt.Println("still locked:", server.Exists("lock:order:42"))
	// Output:
	// packing order 42 with a fence: true
	// error: <nil>
	// still locked: false
}

// When the lock is lost, the function's context ends, and WithLock's error says
// so, also where the function itself returned nil.
func ExampleLocker_WithLock_lost() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	err := locker.WithLock(ctx, "order:42", 30*time.Second, func(ctx context.Context, lock *redislock.Lock) error {
		_ = server.Set(lock.Key(), "somebody else's token") // the lease had ended, and another took over
		_ = lock.Extend(ctx, 30*time.Second)                // finds out; the watchdog would within ten seconds
		<-ctx.Done()
		fmt.Println("stop working:", errors.Is(context.Cause(ctx), redislock.ErrLost))
		return nil
	})
	switch {
	case errors.Is(err, redislock.ErrLost), errors.Is(err, redislock.ErrNotHeld):
		fmt.Println("the work may have run twice")
	case err != nil:
		fmt.Println("not done:", err)
	}
	// Output:
	// stop working: true
	// the work may have run twice
}

// report rebuilds a report under a lock. It is an example of the README.
func report(ctx context.Context, locker *redislock.Locker) (err error) { // named: see the release
	waiting, stop := context.WithTimeout(ctx, 10*time.Second) // for the waiting alone
	defer stop()
	lock, err := locker.Acquire(waiting, "report", time.Minute)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }() // ErrNotHeld: it may have run twice

	held, cancel := lock.Context(ctx) // ends with the lock
	defer cancel()
	return rebuild(held)
}

var rebuild = func(context.Context) error { fmt.Println("rebuilding"); return nil }

// A deferred release adds what it has to say to the named result.
func Example_byHand() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	locker := redislock.New(client)

	fmt.Println("error:", report(context.Background(), locker))

	rebuild = func(context.Context) error { server.FlushAll(); return nil }
	err := report(context.Background(), locker)
	fmt.Println("not held:", errors.Is(err, redislock.ErrNotHeld))
	// Output:
	// rebuilding
	// error: <nil>
	// not held: true
}

// Acquire waits as long as ctx allows. The lock then lasts for its lease,
// however soon ctx ends.
func ExampleLocker_Acquire() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)
	rebuild := func(context.Context) error { fmt.Println("rebuilding"); return nil }

	report := func() (err error) {
		waiting, stop := context.WithTimeout(ctx, 10*time.Second) // for the waiting alone
		defer stop()
		lock, err := locker.Acquire(waiting, "report", time.Minute)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lock.Release(ctx)) }()

		held, cancel := lock.Context(ctx) // ends with the lock
		defer cancel()
		if err := rebuild(held); err != nil {
			return err
		}
		if err := lock.Extend(ctx, time.Minute); err != nil { // one minute from now
			return err
		}
		return rebuild(held)
	}
	fmt.Println("error:", report())
	// Output:
	// rebuilding
	// rebuilding
	// error: <nil>
}

// If ctx ends while another holder has the lock, the error says both.
func ExampleLocker_Acquire_deadline() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	holder, err := locker.Acquire(ctx, "report", time.Minute)
	if err != nil {
		panic(err)
	}
	defer holder.Release(ctx)

	waiting, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	_, err = locker.Acquire(waiting, "report", time.Minute)
	fmt.Println("not acquired:", errors.Is(err, redislock.ErrNotAcquired))
	fmt.Println("deadline exceeded:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// not acquired: true
	// deadline exceeded: true
}

// The release hands the lock to the waiter that has waited longest, here in
// another process. No process polls.
func ExampleLocker_Acquire_handOver() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	here, there := redislock.New(client), redislock.New(client) // stand for two processes

	first, err := here.Acquire(ctx, "report", time.Minute)
	if err != nil {
		panic(err)
	}
	granted := make(chan *redislock.Lock)
	go func() {
		lock, err := there.Acquire(ctx, "report", time.Minute)
		if err != nil {
			panic(err)
		}
		granted <- lock
	}()
	for {
		info, err := here.Inspect(ctx, "report")
		if err != nil {
			panic(err)
		}
		if info.Waiters > 0 { // processes in the queue
			fmt.Println("waiting:", info.Waiters)
			break
		}
		time.Sleep(time.Millisecond)
	}

	fmt.Println("released:", first.Release(ctx) == nil)
	second := <-granted
	fmt.Println("newer fence:", second.Fence() > first.Fence())
	_, err = here.TryAcquire(ctx, "report", time.Minute)
	fmt.Println("held by the other:", errors.Is(err, redislock.ErrNotAcquired))
	fmt.Println("released:", second.Release(ctx) == nil)
	// Output:
	// waiting: 1
	// released: true
	// newer fence: true
	// held by the other: true
	// released: true
}

// TryAcquire is for work that needs to be done by one process only: whoever
// comes second has nothing to do.
func ExampleLocker_TryAcquire() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	nightly := func(host string) {
		lock, err := locker.TryAcquire(ctx, "nightly", time.Hour)
		switch {
		case errors.Is(err, redislock.ErrNotAcquired):
			fmt.Println(host, "skips: somebody else is at it")
			return
		case err != nil:
			fmt.Println(host, "does not know:", err)
			return
		}
		fmt.Println(host, "works, lock", lock.Name(), "stands at", lock.Key())
		// No Release: clocks differ from host to host, and the lease keeps
		// those away that come a little later.
	}
	nightly("web-1")
	nightly("web-2")
	// Output:
	// web-1 works, lock nightly stands at lock:nightly
	// web-2 skips: somebody else is at it
}

// Resume takes over a lock whose token came with the work, here as if it were
// another process.
func ExampleLocker_Resume() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	first, err := locker.Acquire(ctx, "import", time.Minute)
	if err != nil {
		panic(err)
	}
	token := first.Detach() // ends first, and leaves the lock; send it along with the work

	lock, err := locker.Resume(ctx, "import", token, time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println("same acquisition:", lock.Fence() == first.Fence())
	fmt.Println("released:", lock.Release(ctx) == nil)

	_, err = locker.Resume(ctx, "import", token, time.Minute) // never creates a lock
	fmt.Println("too late:", errors.Is(err, redislock.ErrNotHeld))
	// Output:
	// same acquisition: true
	// released: true
	// too late: true
}

// Detach ends a handle without releasing the lock: the work goes on in another
// process, which adopts the lock by its token, and releases it.
func ExampleLock_Detach() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	var job struct{ Order, Token string } // what is sent to the other process
	err := locker.WithLock(ctx, "order:42", time.Minute, func(ctx context.Context, lock *redislock.Lock) error {
		job.Order = "order 42"
		job.Token = lock.Detach() // no renewal and no warning from here on
		fmt.Println("detached:", errors.Is(lock.Err(), redislock.ErrDetached))
		return nil
	})
	fmt.Println("error:", err)
	fmt.Println("still locked:", server.Exists("lock:order:42"))

	// The other process. It has a minute from the last renewal.
	lock, err := locker.Resume(ctx, "order:42", job.Token, time.Minute, redislock.WithWatchdog())
	if errors.Is(err, redislock.ErrNotHeld) {
		panic("too late: somebody else may have the lock by now")
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("finishing", job.Order)
	fmt.Println("released:", lock.Release(ctx) == nil)
	// Output:
	// detached: true
	// error: <nil>
	// still locked: true
	// finishing order 42
	// released: true
}

// With a minimal hold, a job that ends soon leaves the name taken: hosts whose
// clocks are late do not run it once more. No process has to live that long.
func ExampleWithMinHold() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	nightly := func(host string) {
		lock, err := locker.TryAcquire(ctx, "nightly", time.Minute,
			redislock.WithMinHold(time.Hour), redislock.WithWatchdog(), redislock.WithMetadata(host))
		if errors.Is(err, redislock.ErrNotAcquired) {
			info, err := locker.Inspect(ctx, "nightly")
			fmt.Println(host, "skips: done or under way on", info.Metadata, err)
			return
		}
		if err != nil {
			fmt.Println(host, "does not know:", err)
			return
		}
		fmt.Println(host, "works")
		fmt.Println("released:", lock.Release(ctx) == nil)
	}
	nightly("host-1")
	nightly("host-2") // a minute later
	server.expire(time.Hour)
	nightly("host-3") // the next night
	// Output:
	// host-1 works
	// released: true
	// host-2 skips: done or under way on host-1 <nil>
	// host-3 works
	// released: true
}

// Inspect shows the holder of a lock, for display or for a metric.
func ExampleLocker_Inspect() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	lock, err := locker.Acquire(ctx, "import", time.Minute, redislock.WithMetadata("worker-7, pid 4711"))
	if err != nil {
		panic(err)
	}
	info, err := locker.Inspect(ctx, "import")
	if err != nil {
		panic(err)
	}
	fmt.Println("held:", info.Held, "by", info.Metadata)
	fmt.Println("by us:", info.Token == lock.Token(), "fence is ours:", info.Fence == lock.Fence())
	fmt.Println("lease left:", info.TTL > 0 && info.TTL <= time.Minute)

	_ = lock.Release(ctx)
	info, err = locker.Inspect(ctx, "import")
	fmt.Println("held:", info.Held, "error:", err)
	// Output:
	// held: true by worker-7, pid 4711
	// by us: true fence is ours: true
	// lease left: true
	// held: false error: <nil>
}

// Extend sets the lease anew. It fails, and writes nothing, when the lock is
// not ours any more.
func ExampleLock_Extend() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	lock, err := locker.Acquire(ctx, "import", time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println("extended:", lock.Extend(ctx, time.Hour) == nil)
	ttl, err := lock.TTL(ctx)
	fmt.Println("lease:", ttl.Round(time.Minute), err)

	server.expire(time.Hour)
	err = lock.Extend(ctx, time.Hour)
	fmt.Println("not held:", errors.Is(err, redislock.ErrNotHeld))
	fmt.Println("lost for good:", errors.Is(lock.Err(), redislock.ErrLost))
	fmt.Println("recreated:", server.Exists(lock.Key()))
	// Output:
	// extended: true
	// lease: 1h0m0s <nil>
	// not held: true
	// lost for good: true
	// recreated: false
}

// Release frees the lock if it is still ours. ErrNotHeld says that it was not,
// so another process may have worked at the same time.
func ExampleLock_Release() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	slow, err := locker.Acquire(ctx, "import", time.Minute)
	if err != nil {
		panic(err)
	}
	server.expire(time.Minute) // slow was paused past its lease
	quick, err := locker.Acquire(ctx, "import", time.Minute)
	if err != nil {
		panic(err)
	}

	err = slow.Release(ctx)
	fmt.Println("slow is told:", errors.Is(err, redislock.ErrNotHeld))
	fmt.Println("quick keeps the lock:", server.Exists(quick.Key()))
	fmt.Println("quick releases:", quick.Release(ctx) == nil)
	fmt.Println("and again:", errors.Is(quick.Release(ctx), redislock.ErrReleased))
	// Output:
	// slow is told: true
	// quick keeps the lock: true
	// quick releases: true
	// and again: true
}

// A context that ends with the lock is the simplest way to stop in time.
func ExampleLock_Context() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	lock, err := locker.Acquire(ctx, "import", time.Minute)
	if err != nil {
		panic(err)
	}
	held, cancel := lock.Context(ctx)
	defer cancel()

	server.Del(lock.Key())            // somebody has cleaned up by hand
	_ = lock.Extend(ctx, time.Minute) // notices
	<-held.Done()                     // is what the work below would see
	fmt.Println(held.Err())           // the usual text of a context that was cancelled
	fmt.Println(context.Cause(held))  // why
	fmt.Println("parent:", ctx.Err()) // goes on
	fmt.Println(errors.Is(context.Cause(held), redislock.ErrLost))
	// Output:
	// context canceled
	// redislock: hold "lock:import": lock was lost: the key does not hold its token any more
	// parent: <nil>
	// true
}

// Done is for a select; Err then tells a release from a loss.
func ExampleLock_Done() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	watch := func(lock *redislock.Lock) {
		select {
		case <-lock.Done():
			fmt.Println("released:", errors.Is(lock.Err(), redislock.ErrReleased),
				"lost:", errors.Is(lock.Err(), redislock.ErrLost))
		default:
			fmt.Println("held until", lock.Until().After(time.Now()))
		}
	}
	lock, err := locker.Acquire(ctx, "a", time.Minute)
	if err != nil {
		panic(err)
	}
	watch(lock)
	_ = lock.Release(ctx)
	watch(lock)

	lock, err = locker.Acquire(ctx, "b", time.Minute)
	if err != nil {
		panic(err)
	}
	server.Del(lock.Key())
	_ = lock.Release(ctx)
	watch(lock)
	// Output:
	// held until true
	// released: true lost: false
	// released: false lost: true
}

var errStaleFence = errors.New("stale fence: a newer holder has been here")

// fencedLedger is a resource that remembers the greatest fence it has seen.
type fencedLedger struct {
	mu    sync.Mutex
	fence int64
	value string
}

// write compares and stores in one step: between the two a newer holder could
// slip in.
func (l *fencedLedger) write(value string, fence int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fence < l.fence {
		return errStaleFence
	}
	l.value, l.fence = value, fence
	return nil
}

// A process that was paused past its lease wakes up and writes before it can
// look at any clock. No lock can stop that write. The resource can: it refuses
// a fence that is smaller than one it has seen.
func ExampleLock_Fence() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)
	var resource fencedLedger

	paused, err := locker.Acquire(ctx, "account:7", time.Minute)
	if err != nil {
		panic(err)
	}
	server.expire(time.Minute)
	next, err := locker.Acquire(ctx, "account:7", time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println("next holder writes:", resource.write("new", next.Fence()))
	fmt.Println("paused one writes:", resource.write("old", paused.Fence()))
	fmt.Println("value:", resource.value)
	// Output:
	// next holder writes: <nil>
	// paused one writes: stale fence: a newer holder has been here
	// value: new
}

// A prefix of its own, and warnings to the program's logger.
func ExampleNew() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: steady}))

	locker := redislock.New(client,
		redislock.WithPrefix("shop:lock:"),
		redislock.WithLogger(logger))

	lock, err := locker.Acquire(ctx, "order:42", time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(lock.Key())
	server.Del(lock.Key())
	_ = lock.Extend(ctx, time.Minute)
	// Output:
	// shop:lock:order:42
	// level=WARN msg="redislock: lock lost" key=shop:lock:order:42 error="redislock: hold \"shop:lock:order:42\": lock was lost: the key does not hold its token any more"
}

// Three primaries that know nothing of each other: one of them may be lost, and
// two may not.
func ExampleNewQuorum() {
	var clients []redislock.Client
	var servers []exampleServer
	for range 3 {
		client, server := exampleRedis()
		defer server.Close()
		defer client.Close()
		clients, servers = append(clients, client), append(servers, server)
	}
	ctx := context.Background()
	locker, err := redislock.NewQuorum(clients, redislock.WithNodeTimeout(time.Second))
	if err != nil {
		panic(err)
	}
	servers[0].Close()
	lock, err := locker.TryAcquire(ctx, "order:42", time.Minute)
	if err != nil {
		panic(err)
	}
	_, err = locker.TryAcquire(ctx, "order:42", time.Minute)
	fmt.Println("held by somebody else:", errors.Is(err, redislock.ErrNotAcquired))
	fmt.Println("released:", lock.Release(ctx))

	servers[1].Close()
	_, err = locker.TryAcquire(ctx, "order:42", time.Minute)
	fmt.Println("held by somebody else:", errors.Is(err, redislock.ErrNotAcquired))
	fmt.Println("outage:", err != nil)
	// Output:
	// held by somebody else: true
	// released: <nil>
	// held by somebody else: false
	// outage: true
}

func ExampleNewQuorum_clients() {
	clients := []redislock.Client{
		redis.NewClient(&redis.Options{Addr: "redis1:6379", DialerRetries: 1}),
		redis.NewClient(&redis.Options{Addr: "redis2:6379", DialerRetries: 1}),
		redis.NewClient(&redis.Options{Addr: "redis3:6379", DialerRetries: 1}),
	}
	locker, err := redislock.NewQuorum(clients)
	if err != nil {
		panic(err)
	}
	_, err = locker.Inspect(context.Background(), "order:42")
	fmt.Println(err)
}

// steady leaves out what differs from run to run.
func steady(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, "token", "fence":
		return slog.Attr{}
	}
	return a
}

// Every error tells the operation and the key, to people and to programs.
func ExampleError() {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	locker := redislock.New(client)

	_, err := server.Lpush("lock:order:42", "not a lock")
	if err != nil {
		panic(err)
	}
	_, err = locker.TryAcquire(ctx, "order:42", time.Millisecond)
	fmt.Println(err)

	var failure *redislock.Error
	if errors.As(err, &failure) {
		fmt.Println(failure.Op, failure.Key, errors.Is(err, redislock.ErrInvalidTTL))
	}
	_, err = locker.TryAcquire(ctx, "order:42", time.Minute)
	fmt.Println("contention:", errors.Is(err, redislock.ErrNotAcquired), "error:", err != nil)
	// Output:
	// redislock: acquire "lock:order:42": invalid TTL: 1ms is below 10ms
	// acquire lock:order:42 true
	// contention: false error: true
}

// One replica has to acknowledge each lock, or it does not count.
func ExampleWithReplicas() {
	client, server := exampleRedis() // has none
	defer server.Close()
	defer client.Close()
	locker := redislock.New(client, redislock.WithReplicas(1, 100*time.Millisecond))

	_, err := locker.TryAcquire(context.Background(), "order:42", time.Minute)
	fmt.Println("not replicated:", errors.Is(err, redislock.ErrNotReplicated))
	// Output:
	// not replicated: true
}
