package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	}
}

// Every adapter goes through every scenario that it takes part in, with real
// processes on a real server.
func TestScenarios(t *testing.T) {
	admin := redistest.Start(t).Client(t)
	for _, s := range scenarios(tinyPlan()) {
		for _, a := range (campaign{adapters: adapters()}).taking(s) {
			t.Run(s.id+"/"+a.id, func(t *testing.T) {
				w, err := measure(t.Context(), s, a, admin)
				require.NoError(t, err)
				require.Zero(t, w.violations, "two inside at once")
				require.GreaterOrEqual(t, w.elapsed, s.window)
				require.Positive(t, w.client.CPU)
				require.Positive(t, w.client.Goroutines)
				// Those that poll every 100 ms or more may have none in so short a time.
				if s.group == uncontended || a.id == ours || a.id == queue {
					requireProgress(t, s, w)
				}
			})
		}
	}
}

func requireProgress(t *testing.T, s scenario, w window) {
	t.Helper()
	switch s.group {
	case uncontended, contended:
		require.Positive(t, w.ops)
		require.Positive(t, w.server.commands)
		require.Positive(t, w.client.Allocs)
		require.InDelta(t, w.sections, sum(sums(w.counts)), 0)
		require.LessOrEqual(t, w.ops, w.sections)
	case latency:
		require.NotEmpty(t, w.client.Latencies)
	case holding:
		require.Positive(t, w.server.commands, "nothing was renewed")
	case waiting:
		require.Positive(t, w.server.connections)
	}
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
	args := []string{"-quick", "-rounds", "2", "-duration", "100ms", "-scenario", "serial,hot,handover", "-adapters", "redislock,pair,queue", "-out", out}
	require.NoError(t, run(t.Context(), args, &report, io.Discard))

	for _, heading := range []string{"# redislock beside others", "## One hot name, one process", "## Targets", "## Mutual exclusion"} {
		require.Contains(t, report.String(), heading+"\n")
	}
	require.Contains(t, report.String(), "Never were two inside at once.")
	for _, file := range []string{"serial.svg", "hot.svg", "handover.svg", "handover-distribution.svg"} {
		svg, err := os.ReadFile(filepath.Join(out, file))
		require.NoError(t, err)
		require.Contains(t, string(svg), "</svg>")
		require.Contains(t, report.String(), file)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{{"-scenario", "cold"}, {"-adapters", "redislock,zookeeper"}, {"more"}, {"-rounds", "x"}} {
		require.Error(t, run(t.Context(), args, io.Discard, io.Discard), args)
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	require.Error(t, run(t.Context(), []string{"-redis", "127.0.0.1:1"}, io.Discard, io.Discard))
}
