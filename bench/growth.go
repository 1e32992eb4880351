package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// series is how cost grows with one quantity while the rest stays.
type series struct {
	id     string
	title  string
	about  string
	many   string // what there are more and more of
	points []point
}

// point is the scenario with so many of it.
type point struct {
	many     int
	scenario scenario
}

// parts are what is measured: the scenario itself, or its points.
func (s scenario) parts() []scenario {
	if len(s.series) == 0 {
		return []scenario{s}
	}
	var parts []scenario
	for _, of := range s.series {
		for _, p := range of.points {
			parts = append(parts, p.scenario)
		}
	}
	return parts
}

// growthTTL is longer than any measurement takes, so that no lease ends in one.
const growthTTL = time.Minute

func growing(p plan) scenario {
	s := scenario{
		id: growth, title: "Growth", rounds: p.growthRounds, window: p.growing,
		about: "How cost grows. Time is the time between two sections, whoever has them; Redis memory is that of the keys (MEMORY USAGE), " +
			"client memory is heap and stacks of the client processes beyond what they had without a lock, connections included. " +
			"∞: not a single section.",
	}
	s.series = []series{p.growingNames(), p.growingWaiters(), p.growingProcesses()}
	return s
}

func (p plan) growingNames() series {
	s := series{
		id: growth + "-names", title: "Names in use", many: "names in use",
		about: "One process holds all the names; one goroutine releases one after the other and acquires it again. A section is a release and an acquisition.",
	}
	for _, n := range p.names {
		s.add(p, n, manyNames, task{Job: jobTurnover, Processes: 1, Goroutines: n})
	}
	return s
}

func (p plan) growingWaiters() series {
	s := series{
		id: growth + "-waiters", title: "Waiters on one name", many: "waiters",
		about: "So many goroutines of one process wait for one name while another one has it, no pause between two sections. " +
			"A section counts if its goroutine is not that of the section before.",
	}
	for _, n := range p.crowds {
		s.add(p, n, manyWaiters, task{Job: jobCycles, Shared: true, Processes: 1, Goroutines: n + 1})
	}
	return s
}

func (p plan) growingProcesses() series {
	s := series{
		id: growth + "-processes", title: "Processes on one name", many: "processes",
		about: fmt.Sprintf("So many processes of %d goroutines each, on one name, no pause between two sections. "+
			"A section counts if its goroutine is not that of the section before.", crowdOf),
	}
	for _, n := range p.processes {
		s.add(p, n, manyWaiters, task{Job: jobCycles, Shared: true, Processes: n, Goroutines: crowdOf})
	}
	return s
}

func (s *series) add(p plan, many int, g group, t task) {
	t.TTL, t.Weigh = growthTTL, true
	s.points = append(s.points, point{many, scenario{
		id: fmt.Sprintf("%s-%d", s.id, many), title: fmt.Sprintf("%s: %d", s.title, many), op: "section", group: g, task: t,
		warmUp: p.warmUp, window: p.growing, rounds: p.growthRounds, chart: timePerOp,
	}})
}

// growthColumns are what a series shows of each point.
func growthColumns() []metric { return []metric{timePerOp, commandsPerOp, redisMemory, clientMemory} }

// turnover is names that are in use all the time, while one goroutine gives one
// after the other back and takes it again.
type turnover struct {
	holders
	ledger *ledger
	crew   crew
	unused float64 // memory before there was a locker
}

func newTurnover(t task, a adapter) (job, error) {
	ledger, err := mapLedger(t.Ledger, t.contenders())
	if err != nil {
		return nil, err
	}
	unused := footprint()
	locker, err := a.open(t.settings())
	return &turnover{
		holders: holders{task: t, locker: locker, held: make([]held, t.Goroutines)},
		ledger:  ledger, unused: unused,
	}, err
}

func (t *turnover) start(ctx context.Context) error {
	if err := t.acquire(ctx, 0, len(t.held)); err != nil {
		return err
	}
	t.crew.run(ctx, func() error { return t.turn(ctx) })
	return nil
}

func (t *turnover) turn(ctx context.Context) error {
	for i := 0; ctx.Err() == nil; i = (i + 1) % len(t.held) {
		h := t.held[i]
		t.held[i] = nil
		if err := h.unlock(ctx); err != nil {
			return err
		}
		h, err := t.locker.lock(ctx, t.task.name(i))
		if err != nil {
			return err
		}
		t.held[i] = h
		t.ledger.count(0)
	}
	return nil
}

func (t *turnover) end(res *result) { res.Memory = footprint() - t.unused }

// stop leaves alone what was given back when ctx ended: it has a lease.
func (t *turnover) stop() error {
	if err := t.crew.join(); err != nil {
		return err
	}
	return t.holders.stop()
}

// keysOf is all keys of a measurement, whatever its adapter calls them.
func keysOf(ctx context.Context, admin *redis.Client, prefix string) (keys []string, err error) {
	found := admin.Scan(ctx, 0, "*"+prefix+"*", 1000).Iterator()
	for found.Next(ctx) {
		keys = append(keys, found.Val())
	}
	return keys, found.Err()
}

// weigh is the memory of these keys in Redis. One that has gone since has none.
func weigh(ctx context.Context, admin *redis.Client, keys []string) (total float64, err error) {
	const atOnce = 1000
	for len(keys) > 0 {
		some := keys[:min(atOnce, len(keys))]
		keys = keys[len(some):]
		replies, _ := admin.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range some {
				p.MemoryUsage(ctx, key)
			}
			return nil
		})
		for _, r := range replies {
			usage, err := r.(*redis.IntCmd).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return 0, err
			}
			total += float64(usage)
		}
	}
	return total, nil
}
