package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// The benchmarks start a redis-server of their own. Processes are played by
// Lockers with a client each, which share nothing but the machine.
//
//	go test -run '^$' -bench . -benchtime 3s .

func benchLockers(b *testing.B, server *redistest.Server, n int) []*redislock.Locker {
	lockers := make([]*redislock.Locker, n)
	for i := range lockers {
		lockers[i] = redislock.New(server.Client(b))
	}
	return lockers
}

// scriptCalls is how many scripts the server has run.
func scriptCalls(b *testing.B, client *redis.Client) (calls int) {
	stats, err := client.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		var n int
		for _, command := range []string{"eval", "evalsha"} {
			if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d", &n); err == nil {
				calls += n
			}
		}
	}
	return calls
}

// handWritten is what a program without a library does: SET NX PX with a token, and
// a script that compares and deletes.
var handWritten = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

func lockByHand(b *testing.B, client *redis.Client, key string) {
	token := uuid.NewString()
	if ok, err := client.SetNX(context.Background(), key, token, time.Minute).Result(); err != nil || !ok {
		b.Error(ok, err)
	}
	if n, err := handWritten.Run(context.Background(), client, []string{key}, token).Int(); err != nil || n != 1 {
		b.Error(n, err)
	}
}

func lockAndRelease(ctx context.Context, b *testing.B, lk *redislock.Locker, name string) {
	lock, err := lk.Acquire(ctx, name, time.Minute)
	if err != nil {
		b.Error(err)
		return
	}
	if err := lock.Release(ctx); err != nil {
		b.Error(err)
	}
}

// BenchmarkUncontended is acquire and release of a lock without contention.
func BenchmarkUncontended(b *testing.B) {
	server := redistest.Start(b)
	ending, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := server.Client(b)
	lk := redislock.New(client)
	obeying := redislock.New(server.Client(b, func(o *redis.Options) { o.ContextTimeoutEnabled = true }))
	withLock := func(lk *redislock.Locker) {
		err := lk.WithLock(ending, "a", time.Minute, func(context.Context, *redislock.Lock) error { return nil })
		if err != nil {
			b.Error(err)
		}
	}
	for name, cycle := range map[string]func(){
		"by-hand":        func() { lockByHand(b, client, "lock:a") },
		"background-ctx": func() { lockAndRelease(context.Background(), b, lk, "a") },
		"ending-ctx":     func() { lockAndRelease(ending, b, lk, "a") },
		"with-lock":      func() { withLock(lk) },

		// The client has ContextTimeoutEnabled.
		"ending-ctx-obeyed": func() { lockAndRelease(ending, b, obeying, "a") },
		"with-lock-obeyed":  func() { withLock(obeying) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cycle()
			}
		})
	}
}

// BenchmarkBesideByHand is the same, side by side, with one thing more: our scripts,
// called by hand. What they take longer than the other recipe is Redis's time, which
// no library can save. An operation is one round of each.
func BenchmarkBesideByHand(b *testing.B) {
	const cycles = 50 // of each, before it is the other's turn
	server := redistest.Start(b)
	ending, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := server.Client(b)
	lk := redislock.New(client)
	ways := []struct {
		name  string
		cycle func()
		took  []time.Duration
	}{
		{name: "by-hand", cycle: func() { lockByHand(b, client, "by-hand") }},
		{name: "scripts-by-hand", cycle: scriptsByHand(b, server)},
		{name: "background-ctx", cycle: func() { lockAndRelease(context.Background(), b, lk, "a") }},
		{name: "ending-ctx", cycle: func() { lockAndRelease(ending, b, lk, "a") }},
	}
	for b.Loop() {
		for i := range ways {
			start := time.Now()
			for range cycles {
				ways[i].cycle()
			}
			ways[i].took = append(ways[i].took, time.Since(start)/cycles)
		}
	}
	byHand := quantile(ways[0].took, 0.5)
	b.ReportMetric(float64(byHand)/1e3, "µs/by-hand-cycle")
	for _, way := range ways[1:] {
		b.ReportMetric(float64(quantile(way.took, 0.5))/float64(byHand), way.name+"-ratio")
	}
}

// scriptsByHand sends what an acquisition and a release send, each time with another
// token, and looks at nothing.
func scriptsByHand(b *testing.B, server *redistest.Server) (cycle func()) {
	var log commandLog
	client := server.Client(b)
	client.AddHook(&log)
	lock, err := redislock.New(client).Acquire(context.Background(), "scripts", time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	token := lock.Token()
	if err := lock.Release(context.Background()); err != nil {
		b.Fatal(err)
	}
	lines := slices.DeleteFunc(log.lines, func(line []any) bool { return line[0] != "evalsha" }) // the source was sent, once
	if len(lines) != 2 {
		b.Fatal(lines)
	}
	client = server.Client(b)
	return func() {
		again := uuid.NewString()
		for _, line := range lines {
			args := slices.Clone(line)
			for i := range args {
				if args[i] == token {
					args[i] = again
				}
			}
			cmd := redis.NewCmd(context.Background(), args...)
			if err := client.Process(context.Background(), cmd); err != nil {
				b.Error(err)
			}
		}
	}
}

// commandLog is a hook of a client that notes its commands.
type commandLog struct{ lines [][]any }

func (l *commandLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *commandLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.lines = append(l.lines, cmd.Args())
		return next(ctx, cmd)
	}
}

func (l *commandLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// BenchmarkSeparateNames has goroutines acquire and release a lock each, all at the
// same time, beside as many that do it by hand. Rounds are interleaved; an operation
// is one round of each.
func BenchmarkSeparateNames(b *testing.B) {
	const rounds = 20 // of each goroutine, before it is the other's turn
	for _, goroutines := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			server := redistest.Start(b)
			client, lk := server.Client(b), redislock.New(server.Client(b))
			var ours, byHand []time.Duration
			for b.Loop() {
				ours = append(ours, everybody(goroutines, rounds, func(name string) {
					lockAndRelease(context.Background(), b, lk, name)
				}))
				byHand = append(byHand, everybody(goroutines, rounds, func(name string) {
					lockByHand(b, client, "by-hand:"+name)
				}))
			}
			o, h := quantile(ours, 0.5), quantile(byHand, 0.5)
			b.ReportMetric(float64(o)/1e3/float64(rounds*goroutines), "µs/cycle")
			b.ReportMetric(float64(h)/1e3/float64(rounds*goroutines), "µs/by-hand-cycle")
			b.ReportMetric(float64(o)/float64(h), "ratio")
		})
	}
}

// everybody calls f in so many goroutines, with a name for each, and measures it all.
func everybody(goroutines, rounds int, f func(name string)) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			for range rounds {
				f(strconv.Itoa(g))
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// BenchmarkHotName has everybody take turns in an empty critical section. It
// reports the Redis commands of one section, and Jain's fairness index over
// goroutines and over processes (1: all had the same number of turns).
func BenchmarkHotName(b *testing.B) {
	for _, shape := range []struct{ processes, goroutines int }{{1, 1}, {1, 2}, {1, 8}, {1, 64}, {1, 256}, {2, 1}, {8, 8}} {
		b.Run(fmt.Sprintf("%dx%d", shape.processes, shape.goroutines), func(b *testing.B) {
			server := redistest.Start(b)
			admin := server.Client(b)
			counts := make([][]float64, shape.processes)
			before := scriptCalls(b, admin)
			start := time.Now()
			sections := takeTurns(b, benchLockers(b, server, shape.processes), counts, shape.goroutines)
			b.ReportMetric(float64(scriptCalls(b, admin)-before)/sections, "commands/section")
			b.ReportMetric(sections/time.Since(start).Seconds(), "sections/s")
			all := slices.Concat(counts...)
			b.ReportMetric(jain(all), "jain-goroutines")
			b.ReportMetric(jain(sums(counts)), "jain-processes")
		})
	}
}

// takeTurns runs at least b.N sections, and counts those of each goroutine.
func takeTurns(b *testing.B, lockers []*redislock.Locker, counts [][]float64, goroutines int) (sections float64) {
	var wg sync.WaitGroup
	inside, done := 0, 0
	b.ResetTimer()
	for p, locker := range lockers {
		counts[p] = make([]float64, goroutines)
		for g := range counts[p] {
			wg.Go(func() {
				for over := false; !over; {
					lock, err := locker.Acquire(context.Background(), "hot", 10*time.Second)
					if err != nil {
						b.Error(err)
						return
					}
					if inside++; inside != 1 {
						b.Error("two hold the lock")
					}
					counts[p][g]++
					done++
					over = done >= b.N
					inside--
					if err := lock.Release(context.Background()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	b.StopTimer()
	return float64(done)
}

func jain(counts []float64) float64 {
	var sum, squares float64
	for _, n := range counts {
		sum += n
		squares += n * n
	}
	return sum * sum / (squares * float64(len(counts)))
}

func sums(counts [][]float64) (out []float64) {
	for _, c := range counts {
		sum := 0.0
		for _, n := range c {
			sum += n
		}
		out = append(out, sum)
	}
	return out
}

// BenchmarkHandOver measures from the start of Release in one process to the
// return of Acquire in another, and the same for a token that is passed with LPUSH
// and BLPOP, which is as fast as Redis can wake somebody up, and safe against
// nothing. The rounds are interleaved. A PING is what one trip takes.
func BenchmarkHandOver(b *testing.B) {
	server := redistest.Start(b)
	clients := []*redis.Client{server.Client(b), server.Client(b)}
	lockers := []*redislock.Locker{redislock.New(clients[0]), redislock.New(clients[1])}
	var lock, queue, ping []time.Duration
	held, err := lockers[0].Acquire(b.Context(), "hot", time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		var took time.Duration
		took, held = handOver(b, lockers[(i+1)%2], held)
		lock = append(lock, took)
		queue = append(queue, passToken(b, clients[i%2], clients[(i+1)%2]))
		start := time.Now()
		clients[0].Ping(context.Background())
		ping = append(ping, time.Since(start))
	}
	if err := held.Release(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"median", 0.5}, {"p99", 0.99}} {
		l, t := quantile(lock, q.at), quantile(queue, q.at)
		b.ReportMetric(float64(l)/1e3, q.name+"-µs")
		b.ReportMetric(float64(t)/1e3, q.name+"-blpop-µs")
		b.ReportMetric(float64(l)/float64(t), q.name+"-ratio")
		b.ReportMetric(float64(quantile(ping, q.at))/1e3, q.name+"-ping-µs")
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(float64(len(d)-1)*q)]
}

func handOver(b *testing.B, to *redislock.Locker, held *redislock.Lock) (time.Duration, *redislock.Lock) {
	type arrival struct {
		at   time.Time
		lock *redislock.Lock
		err  error
	}
	arrived := make(chan arrival, 1)
	go func() {
		lock, err := to.Acquire(context.Background(), "hot", time.Minute)
		arrived <- arrival{time.Now(), lock, err}
	}()
	for waiting := 0; waiting == 0; {
		info, err := to.Inspect(b.Context(), "hot")
		if err != nil {
			b.Fatal(err)
		}
		waiting = info.Waiters
	}
	start := time.Now()
	if err := held.Release(context.Background()); err != nil {
		b.Fatal(err)
	}
	a := <-arrived
	if a.err != nil {
		b.Fatal(a.err)
	}
	return a.at.Sub(start), a.lock
}

func passToken(b *testing.B, from, to *redis.Client) time.Duration {
	arrived := make(chan time.Time, 1)
	go func() {
		to.BLPop(context.Background(), time.Minute, "token")
		arrived <- time.Now()
	}()
	for blocked := false; !blocked; {
		info, err := from.Info(b.Context(), "clients").Result()
		if err != nil {
			b.Fatal(err)
		}
		blocked = strings.Contains(info, "blocked_clients:1")
	}
	start := time.Now()
	from.LPush(context.Background(), "token", "x")
	return (<-arrived).Sub(start)
}
