package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
)

// measurement is one adapter in one round of one scenario.
type measurement struct {
	scenario scenario
	adapter  adapter
	task     task
	admin    *redis.Client
	ledger   *ledger
	crowd    crowd
}

// startLimit is how long a measurement may take beyond its window. An adapter that
// hangs fails, and does not keep the others waiting.
const startLimit = 2 * time.Minute

// measure starts the workers, lets them run and takes their measure.
func measure(ctx context.Context, s scenario, a adapter, admin *redis.Client) (w window, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.warmUp+s.window+s.task.Settle+startLimit)
	defer cancel()
	defer func() {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
	}()
	dir, err := os.MkdirTemp("", "redislock-bench")
	if err != nil {
		return window{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	m := &measurement{scenario: s, adapter: a, task: s.task, admin: admin}
	m.task.Adapter, m.task.Addr = a.id, admin.Options().Addr
	m.task.Prefix = "redislock-bench:" + rand.Text() // nothing left of before, of whatever type
	m.task.Ledger = filepath.Join(dir, "ledger")
	if m.ledger, err = mapLedger(m.task.Ledger, m.task.contenders()); err != nil {
		return window{}, err
	}
	defer func() { err = errors.Join(err, m.ledger.unmap()) }()
	if err := m.prepare(ctx); err != nil {
		return window{}, err
	}
	defer m.cleanUp()
	return m.run(ctx)
}

func (m *measurement) prepare(ctx context.Context) error {
	if m.adapter.prepare == nil {
		return nil
	}
	return m.adapter.prepare(ctx, m.admin, m.task.names())
}

// cleanUp removes what has no lease. The rest ends by itself.
func (m *measurement) cleanUp() {
	ctx := context.Background()
	if m.adapter.prepare != nil {
		m.admin.Del(ctx, m.task.names()...)
	}
	if m.task.Weigh { // there may be ten thousand, which would be in the way of others
		if keys, err := keysOf(ctx, m.admin, m.task.Prefix); err == nil && len(keys) > 0 {
			m.admin.Unlink(ctx, keys...)
		}
	}
}

func (m *measurement) run(ctx context.Context) (window, error) {
	before, err := m.inspect(ctx)
	if err != nil {
		return window{}, err
	}
	if m.crowd, err = startCrowd(ctx, m.task); err != nil {
		return window{}, err
	}
	defer m.crowd.end()
	if err := m.crowd.start(); err != nil {
		return window{}, err
	}
	if err := sleep(ctx, m.scenario.warmUp); err != nil {
		return window{}, err
	}
	w, err := m.observe(ctx)
	if err != nil {
		return window{}, err
	}
	if w.client, err = m.crowd.results(); err != nil {
		return window{}, err
	}
	w.server.connections -= before.connections
	return m.account(w), nil
}

func (m *measurement) inspect(ctx context.Context) (serverUsage, error) {
	return inspectServer(ctx, m.admin, m.adapter.sends)
}

func (m *measurement) observe(ctx context.Context) (window, error) {
	before, err := m.inspect(ctx)
	if err != nil {
		return window{}, err
	}
	if err := m.crowd.tell(lineBegin); err != nil {
		return window{}, err
	}
	start := time.Now()
	m.ledger.open()
	if err := sleep(ctx, m.scenario.window); err != nil {
		return window{}, err
	}
	m.ledger.close()
	elapsed := time.Since(start)
	after, err := m.inspect(ctx)
	if err != nil {
		return window{}, err
	}
	w := window{elapsed: elapsed, server: after.since(before)}
	if m.task.Weigh {
		if w.memory, err = m.weigh(ctx); err != nil {
			return window{}, err
		}
	}
	return w, m.crowd.tell(lineEnd)
}

// weigh takes the greatest of several values where there are few keys: a name that
// is free at the moment has none with most adapters.
func (m *measurement) weigh(ctx context.Context) (most float64, err error) {
	const looks, few = 10, 100
	for range looks {
		keys, err := keysOf(ctx, m.admin, m.task.Prefix)
		if err != nil {
			return 0, err
		}
		total, err := weigh(ctx, m.admin, keys)
		if err != nil {
			return 0, err
		}
		most = max(most, total)
		if len(keys) > few {
			break
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return most, nil
}

// account adds what the ledger says.
func (m *measurement) account(w window) window {
	w.sections = float64(m.ledger.load(wordSections))
	w.violations = m.ledger.load(wordViolations)
	w.counts = m.ledger.counts(m.task.Processes, m.task.Goroutines)
	switch m.scenario.group {
	case uncontended, manyNames:
		w.ops = w.sections
	case contended, manyWaiters:
		w.ops = float64(m.ledger.load(wordHandOvers))
	case latency:
		w.ops = float64(len(w.client.Latencies))
		w.sections = w.ops
	}
	return w
}
