package servertest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// envChild makes the test binary another process that waits for a lock: the
// server's address, the number of Lockers, and the TTL.
const envChild = "REDISLOCK_TEST_CHILD"

func init() {
	if what := os.Getenv(envChild); what != "" {
		childMain(strings.Fields(what))
		os.Exit(0)
	}
}

// childMain waits for the lock "a" with each of its Lockers. It writes a line
// for each lock that it gets, and then whether it still believes in it. Each
// line that it reads has it release one. It ends with its standard input.
func childMain(what []string) {
	n, _ := strconv.Atoi(what[1])
	ttl, _ := time.ParseDuration(what[2])
	locks := make(chan *redislock.Lock, n)
	for range n {
		lk := redislock.New(redis.NewClient(&redis.Options{Addr: what[0]}), redislock.WithPollInterval(time.Hour))
		go func() {
			lock, err := lk.Acquire(context.Background(), "a", ttl)
			if err != nil {
				fmt.Println("error", err)
				return
			}
			fmt.Println("held", lock.Fence(), lock.Err() == nil)
			locks <- lock
		}()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("released", (<-locks).Release(context.Background()))
	}
}

// child is another process that waits for the lock "a".
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// spawn starts a child, and returns once its tickets stand in the queue.
func (r *rig) spawn(t *testing.T, lockers int, ttl time.Duration) *child {
	t.Helper()
	before := r.queued("a")
	c := &child{cmd: exec.Command(os.Args[0]), lines: make(chan string, 2*lockers)}
	c.cmd.Env = append(os.Environ(), envChild+"="+fmt.Sprint(r.server.Addr(), " ", lockers, " ", ttl))
	c.cmd.Stderr = os.Stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			c.lines <- in.Text()
		}
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-read
		_ = c.cmd.Wait()
	})
	require.Eventually(t, func() bool { return r.queued("a") == before+int64(lockers) }, 4*soon, tick, "the child does not wait")
	return c
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// stop returns when the child stands still: kill(2) returns while its threads
// may still be running on another core.
func (c *child) stop(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGSTOP)
	tasks := fmt.Sprintf("/proc/%d/task", c.cmd.Process.Pid)
	if _, err := os.Stat(tasks); err != nil {
		return // another system
	}
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(tasks + "/*/stat")
		for _, file := range files {
			text, readErr := os.ReadFile(file)
			_, state, _ := strings.Cut(string(text), ") ")
			if readErr != nil || !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return err == nil && len(files) > 0
	}, soon, tick)
}

func (c *child) line(t *testing.T, within time.Duration) string {
	t.Helper()
	select {
	case line := <-c.lines:
		return line
	case <-time.After(within):
		require.FailNow(t, "the child says nothing within "+within.String())
		return ""
	}
}

func TestServerAnotherProcessGetsTheLockAndGivesItBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	holder := hold(t, r.locker(t), "a", time.Minute)
	c := r.spawn(t, 1, time.Minute)
	require.NoError(t, holder.Release(t.Context()))
	assert.Equal(t, fmt.Sprint("held ", r.fence(t, "a"), " true"), c.line(t, soon))
	wait := r.waiting(t.Context(), t, r.asleep(t), "a", time.Minute)
	_, err := fmt.Fprintln(c.in)
	require.NoError(t, err)
	r.served(t, wait)
	assert.Equal(t, "released <nil>", c.line(t, soon))
}

// The tickets of those who were killed are passed over, also where somebody
// watches all channels.
func TestServerTicketsOfKilledProcessesArePassedOver(t *testing.T) {
	t.Parallel()
	for kind, how := range map[string]struct {
		lockers int
		watched bool
	}{
		"one": {1, false}, "fifty": {50, false}, "one, with a monitor": {1, true}, "fifty, with a monitor": {50, true},
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			ctx := t.Context()
			if how.watched {
				for _, pattern := range []string{"*", "lock:inbox:*"} {
					monitor := r.direct.PSubscribe(ctx, pattern)
					defer func() { _ = monitor.Close() }()
					_, err := monitor.Receive(ctx)
					require.NoError(t, err)
				}
			}
			holder := hold(t, r.locker(t), "a", time.Minute)
			c := r.spawn(t, how.lockers, time.Minute)
			wait := r.waiting(ctx, t, r.asleep(t), "a", time.Minute)
			c.signal(t, syscall.SIGKILL)
			require.Eventually(t, func() bool { return len(r.inboxes()) == 1 }, soon, tick)
			assert.EqualValues(t, how.lockers+1, r.queued("a"))
			released := time.Now()
			require.NoError(t, holder.Release(ctx))
			lock, err := wait(t)
			assert.LessOrEqual(t, time.Since(released), wakeUp)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
			assert.Zero(t, r.queued("a"))
			for range c.lines {
				assert.Fail(t, "the dead got the lock")
			}
		})
	}
}

// Those who were killed while one of them held the lock: their lease is waited
// for, and then the first live one has it.
func TestServerKilledHolderAndKilledHeadsOfTheQueue(t *testing.T) {
	t.Parallel()
	const ttl = 700 * time.Millisecond
	r := newRig(t)
	holder := hold(t, r.locker(t), "a", time.Minute)
	c := r.spawn(t, 5, ttl)
	// It knows only the longer lease of the first holder, and has to ask in
	// between.
	wait := r.waiting(t.Context(), t, r.poller(t), "a", time.Minute)
	require.NoError(t, holder.Release(t.Context()))
	assert.Contains(t, c.line(t, soon), "held")
	c.signal(t, syscall.SIGKILL)
	due := time.Now().Add(r.direct.PTTL(t.Context(), keyOf("a")).Val())
	lock, err := wait(t)
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(due), wakeUp)
	r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, nil })
}

// The head of the queue stands still. It is granted the lock, which is lost to
// the others for its lease, and when it goes on it must not believe that it
// holds it.
func TestServerHeadThatStandsStillHoldsUpTheOthersForOneLeaseAndHoldsNothing(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	r := newRig(t)
	ctx := t.Context()
	holder := hold(t, r.locker(t), "a", time.Minute)
	c := r.spawn(t, 1, ttl)
	wait := r.waiting(ctx, t, r.poller(t), "a", time.Minute)
	c.stop(t)
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	granted := r.value(t, "a")
	lock, err := wait(t)
	require.NoError(t, err)
	took := time.Since(released)
	assert.NotEqual(t, granted, lock.Token())
	assert.LessOrEqual(t, took, ttl+pollInterval+wakeUp)
	assert.GreaterOrEqual(t, took, ttl-tick, "it was not granted to the head")
	fence := r.fence(t, "a")
	require.Equal(t, lock.Fence(), fence)

	c.signal(t, syscall.SIGCONT)
	require.Eventually(t, func() bool { return r.queued("a") == 1 }, soon, tick, "it has to ask, and to wait anew")
	select {
	case line := <-c.lines:
		assert.Fail(t, "it believes that it holds the lock", line)
	default:
	}
	require.NoError(t, lock.Err())
	require.NoError(t, lock.Release(ctx))
	assert.Equal(t, fmt.Sprint("held ", r.fence(t, "a"), " true"), c.line(t, soon))
	assert.Greater(t, r.fence(t, "a"), fence)
}

// requests is what clients have sent so far: scripts, and what the
// subscriptions need. (INFO counts also what scripts call.)
func (r *rig) requests(t testing.TB, commands ...string) (calls int) {
	t.Helper()
	stats, err := r.direct.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		for _, command := range commands {
			var n int
			if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d", &n); err == nil {
				calls += n
			}
		}
	}
	return calls
}

var everyCommand = []string{"eval", "evalsha", "subscribe", "unsubscribe", "ping"}

// crowd are goroutines of several processes that wait for one name. They take
// turns as soon as they are let loose, until it is enough.
type crowd struct {
	lockers []*redislock.Locker
	counts  [][]int // by Locker and goroutine; guarded by the lock
	turns   int     // likewise
	inside  int     // likewise
	enough  int
	wg      sync.WaitGroup
	cancel  context.CancelFunc
}

// gather has them all wait behind holder.
func (r *rig) gather(t *testing.T, processes, goroutines, enough int, ttl time.Duration) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := &crowd{enough: enough, cancel: cancel}
	for p := range processes {
		lk := r.lockerWith(r.server.Client(t))
		c.lockers = append(c.lockers, lk)
		c.counts = append(c.counts, make([]int, goroutines))
		for g := range goroutines {
			first := &noticed{Context: ctx, waiting: make(chan struct{})}
			c.wg.Go(func() { c.work(t, ctx, first, lk, ttl, &c.counts[p][g]) })
			r.await(t, first.waiting, "goroutine in line")
		}
	}
	require.Eventually(t, func() bool { return r.queued("hot") == int64(processes) }, soon, tick)
	return c
}

func (c *crowd) work(t *testing.T, ctx, first context.Context, lk *redislock.Locker, ttl time.Duration, count *int) {
	for waiting := first; ; waiting = ctx {
		lock, err := lk.Acquire(waiting, "hot", ttl)
		if err != nil {
			assert.ErrorIs(t, err, context.Canceled)
			return
		}
		c.inside++
		assert.Equal(t, 1, c.inside, "two hold the lock")
		over := c.turns == c.enough
		if !over {
			c.turns++
			*count++
		}
		c.inside--
		if over {
			c.cancel() // the lock is handed on meanwhile
		}
		if err := lock.Release(context.Background()); !assert.NoError(t, err) || over {
			return
		}
	}
}

func TestServerThousandWaitersCostNothingButTheirTurns(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const handOvers, processes = 50, 2
	r := newRig(t)
	holder := hold(t, r.locker(t), "hot", time.Minute)
	c := r.gather(t, processes, 500, handOvers, time.Minute)
	assert.Len(t, r.inboxes(), processes, "one subscription for each process")
	assert.Equal(t, processes, r.subscribers())

	const seconds = 3
	before := r.requests(t, everyCommand...)
	time.Sleep(seconds * time.Second) // what is measured
	idle := r.requests(t, everyCommand...) - before
	t.Logf("waiting: %d requests in %d s", idle, seconds)
	// Five questions of each head, one less or more for jitter, and pings. In
	// the long run there is one for each poll interval.
	assert.LessOrEqual(t, idle, (6+seconds)*processes)

	before = r.requests(t, "eval", "evalsha")
	require.NoError(t, holder.Release(t.Context()))
	c.wg.Wait()
	busy := r.requests(t, "eval", "evalsha") - before
	t.Logf("%d requests for %d hand-overs", busy, handOvers)
	assert.LessOrEqual(t, busy, 2*handOvers)
	r.nobodyWaits(t)
	assert.Empty(t, r.log.about())
}

// Everybody takes turns, and where those of one process follow each other, one
// turn costs one request.
func TestServerTurnsAreFairAndCostOneRequest(t *testing.T) {
	for _, shape := range []struct {
		processes, goroutines int
		jain, requests        float64
	}{
		{1, 64, 0.99, 1.05}, {8, 8, 0.98, 1.05},
		{1, 2, 0.99, 2.05}, // there may be nobody in line to be brought along
		{2, 1, 0.9, 2.05},  // nor in the queue: whoever is back sooner has another turn
	} {
		t.Run(fmt.Sprint(shape.processes, "x", shape.goroutines), func(t *testing.T) {
			r := newRig(t)
			turns := 200 * shape.processes * shape.goroutines
			if turns < 1000 {
				turns = 1000
			}
			holder := hold(t, r.locker(t), "hot", time.Minute)
			c := r.gather(t, shape.processes, shape.goroutines, turns, 10*time.Second)
			before := r.requests(t, everyCommand...)
			begin := time.Now()
			require.NoError(t, holder.Release(t.Context()))
			c.wg.Wait()
			took := time.Since(begin)
			each := float64(r.requests(t, everyCommand...)-before) / float64(turns)
			var all, processes []int
			for _, counts := range c.counts {
				sum := 0
				for _, n := range counts {
					sum += n
				}
				processes, all = append(processes, sum), append(all, counts...)
			}
			t.Logf("%.3f requests each, fairness %.4f of goroutines and %.4f of processes, %d turns in %s",
				each, fairness(all), fairness(processes), turns, took)
			assert.LessOrEqual(t, each, shape.requests)
			for who, counts := range map[string][]int{"goroutines": all, "processes": processes} {
				assert.GreaterOrEqual(t, fairness(counts), shape.jain, who)
				least, most := counts[0], counts[0]
				for _, n := range counts {
					least, most = min(least, n), max(most, n)
				}
				if shape.requests < 2 { // else it depends on who is quick
					// One that is slow to come back changes the order, hence
					// not one or two.
					assert.LessOrEqual(t, float64(most-least), max(4, 0.02*float64(most)), "%s: %d to %d", who, least, most)
				}
			}
			r.nothingHeld(t)
		})
	}
}

// fairness is Jain's index: 1 if all are equal.
func fairness(counts []int) float64 {
	sum, squares := 0.0, 0.0
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (squares * float64(len(counts)))
}

func TestServerWithoutContentionALockCostsTwoRequests(t *testing.T) {
	t.Parallel()
	const rounds = 100
	r := newRig(t)
	lk := r.locker(t)
	before := r.requests(t, everyCommand...)
	for range rounds {
		lock, err := lk.Acquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
	assert.Equal(t, 2*rounds, r.requests(t, everyCommand...)-before)
}

// One who waits for many names asks about each once in a poll interval, in the
// long run.
func TestServerWaitersForManyNamesAskOncePerPollInterval(t *testing.T) {
	t.Parallel()
	const names, interval, intervals = 200, 500 * time.Millisecond, 4
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lk := r.lockerWith(r.server.Client(t), redislock.WithPollInterval(interval))
	var wg sync.WaitGroup
	for i := range names {
		name := fmt.Sprint(i)
		require.NoError(t, r.direct.Set(ctx, keyOf(name), "other", 0).Err())
		wg.Go(func() {
			_, err := lk.Acquire(ctx, name, time.Minute)
			assert.ErrorIs(t, err, redislock.ErrNotAcquired)
		})
	}
	all := func() bool {
		queues, err := r.direct.Keys(ctx, "*:queue").Result()
		return err == nil && len(queues) == names
	}
	require.Eventually(t, all, soon, 20*time.Millisecond)
	assert.Len(t, r.inboxes(), 1, "one subscription for all names")
	time.Sleep(2 * interval) // the first questions follow each other sooner
	before, begin := r.requests(t, "eval", "evalsha"), time.Now()
	time.Sleep(intervals * interval) // what is measured
	asked, took := r.requests(t, "eval", "evalsha")-before, time.Since(begin)
	each := float64(asked) / names / (float64(took) / float64(interval))
	t.Logf("%.2f requests for each name and poll interval", each)
	// A poll interval may be an eighth shorter, and of those that have begun before one
	// more question may fall into the time.
	assert.LessOrEqual(t, each, 8.0/7+1.0/intervals)
	assert.GreaterOrEqual(t, each, 0.5)
	cancel()
	wg.Wait()
	require.NoError(t, r.direct.FlushAll(t.Context()).Err())
	r.settled(t)
}
