package main

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestLedger(t *testing.T, contenders int) *ledger {
	t.Helper()
	l, err := mapLedger(filepath.Join(t.TempDir(), "ledger"), contenders)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.unmap()) })
	return l
}

func TestLedgerCountsHandOversOnlyWhileOpen(t *testing.T) {
	l := newTestLedger(t, 4)
	visit := func(contenders ...int) {
		for _, c := range contenders {
			l.enter(c)
			l.leave(c)
		}
	}
	visit(0, 1, 2)
	l.open()
	visit(2, 2, 0, 0, 0, 3) // 2 was there before
	l.close()
	visit(1, 0)

	require.EqualValues(t, 6, l.load(wordSections))
	require.EqualValues(t, 2, l.load(wordHandOvers))
	require.Zero(t, l.load(wordViolations))
	require.Equal(t, [][]float64{{3, 0}, {2, 1}}, l.counts(2, 2))
}

func TestLedgerIsSharedByFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	a, err := mapLedger(path, 2)
	require.NoError(t, err)
	b, err := mapLedger(path, 2)
	require.NoError(t, err)
	a.open()
	b.enter(1)
	require.EqualValues(t, 1, a.load(wordSections))
	a.enter(0)
	require.EqualValues(t, 1, b.load(wordViolations))
	require.NoError(t, a.unmap())
	require.NoError(t, b.unmap())
}

// broken lets everybody in.
type broken struct{}

func (broken) lock(context.Context, string) (held, error) { return broken{}, nil }
func (broken) unlock(context.Context) error               { return nil }
func (broken) close()                                     {}

func brokenAdapter() adapter {
	return adapter{id: "broken", title: "broken", groups: everywhere, open: func(settings) (locker, error) { return broken{}, nil }}
}

// A lock that excludes nobody is found out by each job that can tell.
func TestViolationsAreFound(t *testing.T) {
	base := task{Processes: 1, Goroutines: 8, Shared: true, TTL: time.Second}
	for name, newJob := range map[string]func(task, adapter) (job, error){
		"cycles": newCycles, "hand-overs": newHandOvers, "idlers": newIdlers,
	} {
		t.Run(name, func(t *testing.T) {
			task := base
			task.Ledger = filepath.Join(t.TempDir(), "ledger")
			j, err := newJob(task, brokenAdapter())
			require.NoError(t, err)
			seen, err := mapLedger(task.Ledger, task.contenders())
			require.NoError(t, err)
			defer func() { require.NoError(t, seen.unmap()) }()

			ctx, cancel := context.WithCancel(t.Context())
			require.NoError(t, j.start(ctx))
			require.Eventually(t, func() bool { return seen.load(wordViolations) > 0 }, 10*time.Second, time.Millisecond)
			cancel()
			_ = j.stop()
		})
	}
}

func TestViolationFailsTheProgram(t *testing.T) {
	c := campaign{scenarios: []scenario{hotScenario()}, adapters: []adapter{brokenAdapter()}}
	r := &results{samples: map[string]map[string][]sample{hot: {}}}
	r.add(c.scenarios[0], brokenAdapter(), window{violations: 3}, nil)
	var printed bytes.Buffer
	require.ErrorIs(t, publish(report{campaign: c, results: r}, &printed), errViolated)
	require.Contains(t, printed.String(), "VIOLATED")
	require.NotContains(t, printed.String(), "Never were two inside")
}

func TestCrewKeepsTheFirstErrorBeforeItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var c crew
	var once sync.Once
	c.run(ctx, func() error { once.Do(cancel); return errTaken })
	require.NoError(t, c.join(), "connections are closed under those who use them")

	var d crew
	d.run(t.Context(), func() error { return errTaken })
	require.ErrorIs(t, d.join(), errTaken)
}
