package main

import (
	"fmt"
	"math"
)

// target is a promise about redislock, and what became of it.
type target struct {
	what   string
	bound  float64
	atMost bool // or at least
	value  float64
	metric metric // how to write the values; empty for a ratio
}

func (t target) show(v float64) string {
	if t.metric == "" {
		return showRatio(v)
	}
	return t.metric.show(v)
}

func (t target) limit() string {
	if t.atMost {
		return "≤ " + t.show(t.bound)
	}
	return "≥ " + t.show(t.bound)
}

func (t target) verdict() string {
	switch {
	case math.IsNaN(t.value):
		return "not measured"
	case t.atMost && t.value <= t.bound, !t.atMost && t.value >= t.bound:
		return "yes"
	}
	return "**no**"
}

func (r report) targets() []target {
	of, than := r.results.median, r.results.ratio
	list := []target{
		{"uncontended acquire + release, one goroutine: time × pair", 1.10, true, than(serial, ours, pair, timePerOp), ""},
		{"the same with a cancelable context", 1.10, true, than(serialCancelable, ours, pair, timePerOp), ""},
		{"its allocations", 25, true, of(serial, ours, allocsPerOp), allocsPerOp},
		{"allocations with a cancelable context", 25, true, of(serialCancelable, ours, allocsPerOp), allocsPerOp},
		{"64 goroutines on separate names: time × pair", 0.35, true, than(parallel, ours, pair, timePerOp), ""},
		{"the same with a cancelable context", 0.35, true, than(parallelCancelable, ours, pair, timePerOp), ""},
		{"server time per uncontended cycle × pair", 2, true, than(serial, ours, pair, serverTime), ""},
		{"hot name, one process: hand-overs/s × queue", 0.9, false, than(hot, ours, queue, opsPerSecond), ""},
		{"the same with a cancelable context", 0.9, false, than(hotCancelable, ours, queue, opsPerSecond), ""},
		{"hot name, 8 processes: hand-overs/s × queue", 0.8, false, than(hotProcesses, ours, queue, opsPerSecond), ""},
		{"hand-over, median latency × queue", 1.2, true, than(handOver, ours, queue, latencyMedian), ""},
	}
	list = append(list, r.againstFastest(hot, 5)...)
	list = append(list, r.againstFastest(hotPause, 1.3)...)
	list = append(list, r.againstFastest(hotProcesses, 3)...)
	return append(list,
		target{"held locks with watchdog: share of one core", 0.03, true, of(holdMany, ours, clientShare), clientShare},
		target{"held locks with watchdog: memory of each", 6 * 1024, true, of(holdMany, ours, bytesEach), bytesEach},
	)
}

// againstFastest is what is promised about a hot name, beside the library that is
// fastest at it in this very run.
func (r report) againstFastest(id string, atLeast float64) []target {
	for _, s := range r.campaign.scenarios {
		other, ok := r.campaign.fastest(r.results, s)
		if s.id != id || !ok {
			continue
		}
		than := func(m metric) float64 { return r.results.ratio(id, ours, other.id, m) }
		return []target{
			{fmt.Sprintf("%s: hand-overs/s × %s, the fastest other library", s.title, other.title), atLeast, false, than(opsPerSecond), ""},
			{fmt.Sprintf("%s: commands/hand-over × %s", s.title, other.title), 1.0 / 3, true, than(commandsPerOp), ""},
		}
	}
	return []target{{id + ": × the fastest other library", atLeast, false, math.NaN(), ""}}
}
