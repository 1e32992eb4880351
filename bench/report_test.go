package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func hotScenario() scenario {
	all := scenarios(tinyPlan())
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.id == hot })]
}

// made is a report on results that are made up: hand-overs per second and their
// commands, by adapter.
func made(rates map[string][2]float64) report {
	s := hotScenario()
	r := &results{samples: map[string]map[string][]sample{s.id: {}}}
	for id, v := range rates {
		r.samples[s.id][id] = []sample{{values: map[metric]float64{opsPerSecond: v[0], commandsPerOp: v[1]}}}
	}
	return report{campaign: campaign{scenarios: []scenario{s}, adapters: adapters()}, results: r}
}

func (r report) text(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.write(&b))
	return b.String()
}

func TestWinnersAreNamed(t *testing.T) {
	lost := made(map[string][2]float64{ours: {100, 2}, "rueidislock": {200, 3}, pair: {50, 1}, queue: {900, 1}}).text(t)
	require.Contains(t, lost, "**rueidislock is ahead** of redislock in hand-overs/s (200, redislock 100).")
	require.Contains(t, lost, "**hand-written pair is ahead** of redislock in commands/hand-over (1.00, redislock 2.00).")
	require.NotContains(t, lost, "(unsafe) is ahead", "it is no lock")
	require.Contains(t, lost, "| **200** |")
	require.NotContains(t, lost, "**900**")

	won := made(map[string][2]float64{ours: {300, 1}, "rueidislock": {200, 3}, pair: {305, 2}}).text(t)
	require.Contains(t, won, "No other lock is ahead of redislock in any column.", "what differs by less than the noise is the same")
}

func TestStandstillsAreNamed(t *testing.T) {
	text := made(map[string][2]float64{ours: {1, 1}, "rueidislock": {0, math.Inf(1)}}).text(t)
	require.Contains(t, text, "rueidislock stood still in 1 of 1 round: not a single hand-over.")
}

func TestTargetsAreComparedWithTheFastestLibrary(t *testing.T) {
	r := made(map[string][2]float64{ours: {100, 1}, "redsync": {10, 4}, "rueidislock": {25, 2}, pair: {99, 1}, queue: {100, 1}})
	verdicts := map[string]string{}
	for _, target := range r.targets() {
		verdicts[target.what] = target.verdict()
	}
	require.Equal(t, "**no**", verdicts["One hot name, one process: hand-overs/s × rueidislock, the fastest other library"])
	require.Equal(t, "**no**", verdicts["One hot name, one process: commands/hand-over × rueidislock"])
	require.Equal(t, "yes", verdicts["hot name, one process: hand-overs/s × queue"])
	require.Equal(t, "not measured", verdicts["hand-over, median latency × queue"])
}

func TestTargetBounds(t *testing.T) {
	require.Equal(t, "yes", target{bound: 1, atMost: true, value: 1}.verdict())
	require.Equal(t, "**no**", target{bound: 1, atMost: true, value: 1.01}.verdict())
	require.Equal(t, "yes", target{bound: 1, value: math.Inf(1)}.verdict())
	require.Equal(t, "**no**", target{bound: 1, value: 0.9}.verdict())
	require.Equal(t, "≤ 3.00 %", target{bound: 0.03, atMost: true, metric: clientShare}.limit())
	require.Equal(t, "≥ 5.00", target{bound: 5}.limit())
}

func TestAdaptersBeginInTurn(t *testing.T) {
	c := campaign{adapters: adapters()}
	uncontendedScenario := scenario{group: uncontended}
	var firsts []string
	for round := range 3 {
		firsts = append(firsts, c.order(uncontendedScenario, round)[0].id)
	}
	require.Equal(t, []string{ours, "bsm", "redsync"}, firsts)
}
