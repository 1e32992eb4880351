package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// TestMain lets the test binary be its own worker, as the program is.
func TestMain(m *testing.M) {
	logging.Disable()
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	os.Exit(m.Run())
}

// tinyPlan only shows that everything works: nothing that it measures means much.
func tinyPlan() plan {
	const window = 150 * time.Millisecond
	return plan{
		rounds: 1, duration: window, warmUp: 20 * time.Millisecond, passing: window,
		waiters: 20, settle: 50 * time.Millisecond, idling: window, idleRounds: 1,
		locks: 20, heldTTL: 600 * time.Millisecond, heldRounds: 1,
		growing: window, growthRounds: 1, names: []int{1, 20}, crowds: []int{1, 20}, processes: []int{1, 2},
	}
}

// Every adapter goes through every scenario that it takes part in, with real
// processes on a real server.
func TestScenarios(t *testing.T) {
	for _, s := range allParts(tinyPlan()) {
		t.Run(s.id, func(t *testing.T) {
			t.Parallel() // most of a measurement is waiting
			admin := redistest.Start(t).Client(t)
			for _, a := range (campaign{adapters: adapters()}).taking(s) {
				t.Run(a.id, func(t *testing.T) { requireMeasured(t, s, a, admin) })
			}
		})
	}
}

// requireMeasured measures again, for longer, where nothing has gone on: on a busy
// machine a process may get nothing to do of so short a time.
func requireMeasured(t *testing.T, s scenario, a adapter, admin *redis.Client) {
	t.Helper()
	for try := range 4 {
		w, err := measure(t.Context(), s, a, admin)
		require.NoError(t, err)
		require.Zero(t, w.violations, "two inside at once")
		require.GreaterOrEqual(t, w.elapsed, s.window)
		require.Positive(t, w.client.CPU)
		require.Positive(t, w.client.Goroutines)
		requireNetwork(t, s, w)
		if w.ops > 0 || s.op == "" || try == 3 {
			requireUsage(t, s, a, w)
			return
		}
		s.window *= 4
	}
}

// requireUsage wants progress, and what it takes. Those that poll every 100 ms or
// more may have none in so short a time, and rueidislock stands still after a
// request that took more than 20 ms.
func requireUsage(t *testing.T, s scenario, a adapter, w window) {
	t.Helper()
	if s.group == uncontended && a.id != "rueidislock" || a.id == ours || a.id == queue {
		requireProgress(t, s, w)
	}
}

func allParts(p plan) (parts []scenario) {
	for _, s := range scenarios(p) {
		parts = append(parts, s.parts()...)
	}
	return parts
}

func requireProgress(t *testing.T, s scenario, w window) {
	t.Helper()
	switch s.group {
	case uncontended, contended, manyNames, manyWaiters:
		require.Positive(t, w.ops)
		require.Positive(t, w.server.commands)
		require.Positive(t, w.client.Allocs)
		require.InDelta(t, w.sections, sum(sums(w.counts)), 0)
		require.LessOrEqual(t, w.ops, w.sections)
		if s.task.Weigh {
			require.Positive(t, w.memory)
			require.Positive(t, w.client.Memory)
		}
	case latency:
		require.NotEmpty(t, w.client.Latencies)
	case holding:
		require.Positive(t, w.server.commands, "nothing was renewed")
	case waiting:
		require.Positive(t, w.server.connections)
	}
}

// requireNetwork wants each worker to have the network: no section, and no
// hand-over, takes less than its shortest delay. Where names are separate many
// sections go on at once.
func requireNetwork(t *testing.T, s scenario, w window) {
	t.Helper()
	if !s.task.Network.delays() || s.id == networkParallel {
		return
	}
	if s.group == latency {
		for _, took := range w.client.Latencies {
			require.GreaterOrEqual(t, took, lan.Min)
		}
		return
	}
	require.LessOrEqual(t, w.sections*lan.Min.Seconds(), w.elapsed.Seconds()+lan.Min.Seconds())
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// The whole program, with a server of its own.
func TestProgram(t *testing.T) {
	redistest.Require(t)
	out := filepath.Join(t.TempDir(), "plots")
	var report bytes.Buffer
	args := []string{"-quick", "-rounds", "2", "-duration", "100ms", "-scenario", "serial-cancelable,network-serial,hot,handover", "-adapters", "redislock,pair,queue", "-out", out}
	require.NoError(t, run(t.Context(), args, &report, io.Discard))

	for _, heading := range []string{"# redislock beside others", "## Loopback and network", "## One hot name, one process", "## Targets", "## Mutual exclusion"} {
		require.Contains(t, report.String(), heading+"\n")
	}
	require.Contains(t, report.String(), "Never were two inside at once.")
	written, err := os.ReadDir(out)
	require.NoError(t, err)
	var files []string
	for _, f := range written {
		files = append(files, f.Name())
		require.Contains(t, report.String(), f.Name())
		svg, err := os.ReadFile(filepath.Join(out, f.Name()))
		require.NoError(t, err)
		requireReadable(t, svg)
	}
	require.Equal(t, []string{
		"bench-handover-distribution.svg", "bench-handover.svg", "bench-hot.svg", "bench-serial-cancelable.svg",
	}, files, "the network stands beside loopback")
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{{"-scenario", "cold"}, {"-adapters", "redislock,zookeeper"}, {"more"}, {"-rounds", "x"}} {
		require.Error(t, run(t.Context(), args, io.Discard, io.Discard), args)
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	require.Error(t, run(t.Context(), []string{"-redis", "127.0.0.1:1"}, io.Discard, io.Discard))
}
