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
		{"uncontended, one goroutine: time × pair", 1.45, true, than(serialCancelable, ours, pair, timePerOp), ""},
		{"the same × rueidislock", 1, true, than(serialCancelable, ours, "rueidislock", timePerOp), ""},
		{"the same × redsync", 1, true, than(serialCancelable, ours, "redsync", timePerOp), ""},
		{"its allocations", 25, true, of(serialCancelable, ours, allocsPerOp), allocsPerOp},
		{"the same with an endless context: time × pair", 1.45, true, than(serial, ours, pair, timePerOp), ""},
		{"its allocations", 25, true, of(serial, ours, allocsPerOp), allocsPerOp},
		{"server time per uncontended cycle × pair", 2, true, than(serialCancelable, ours, pair, serverTime), ""},
		{"around a function: time × pair", 1.6, true, than(withLock, ours, pair, timePerOp), ""},
		{"64 goroutines on separate names: time × pair", 0.9, true, than(parallelCancelable, ours, pair, timePerOp), ""},
	}
	list = append(list, r.againstFastest(parallelCancelable, 1, true)...)
	list = append(list,
		target{"network, one goroutine: time × pair", 1.03, true, than(networkSerial, ours, pair, timePerOp), ""},
		target{"network, 64 goroutines on separate names: time × pair", 0.6, true, than(networkParallel, ours, pair, timePerOp), ""},
		target{"network, hand-over: median latency × queue", 1.15, true, than(networkHandOver, ours, queue, latencyMedian), ""},
		target{"network, hand-over: median latency × rueidislock", 1, true, than(networkHandOver, ours, "rueidislock", latencyMedian), ""},
		target{"network, hot name, 8 processes: hand-overs/s × queue", 0.9, false, than(networkHot, ours, queue, opsPerSecond), ""},
		target{"hot name, one process: hand-overs/s × queue", 0.9, false, than(hot, ours, queue, opsPerSecond), ""},
		target{"the same with a cancelable context", 0.9, false, than(hotCancelable, ours, queue, opsPerSecond), ""},
		target{"hot name, 8 processes: hand-overs/s × queue", 0.8, false, than(hotProcesses, ours, queue, opsPerSecond), ""},
		target{"hand-over, median latency × queue", 1.2, true, than(handOver, ours, queue, latencyMedian), ""},
		target{"hand-over, median latency × rueidislock", 1, true, than(handOver, ours, "rueidislock", latencyMedian), ""},
	)
	list = append(list, r.againstFastest(hot, 5, false)...)
	list = append(list, r.againstFastest(hotPause, 1.2, false)...)
	list = append(list, r.againstFastest(hotProcesses, 4, false)...)
	return append(list,
		target{"held locks with watchdog: share of one core", 0.025, true, of(holdMany, ours, clientShare), clientShare},
		target{"held locks with watchdog: memory of each", 2.5 * 1024, true, of(holdMany, ours, bytesEach), bytesEach},
		target{"growth: commands for a contended section, at most", 1.1, true, r.growthWorst(commandsPerOp), commandsPerOp},
	)
}

// growthWorst is the greatest of our medians where somebody waits.
func (r report) growthWorst(m metric) float64 {
	worst := math.NaN()
	for _, s := range r.campaign.scenarios {
		for _, part := range s.parts() {
			if v := r.results.median(part.id, ours, m); part.group == manyWaiters && !(v <= worst) {
				worst = v
			}
		}
	}
	return worst
}

// againstFastest is what is promised beside the library that is fastest in this
// very run.
func (r report) againstFastest(id string, bound float64, atMost bool) []target {
	s, measured := r.campaign.scenario(id)
	other, ok := r.campaign.fastest(r.results, s)
	if !measured || !ok {
		return []target{{id + ": × the fastest other library", bound, atMost, math.NaN(), ""}}
	}
	than := func(m metric) float64 { return r.results.ratio(id, ours, other.id, m) }
	list := []target{{
		fmt.Sprintf("%s: %s × %s, the fastest other library", s.title, column{metric: s.chart}.title(s), other.title),
		bound, atMost, than(s.chart), "",
	}}
	if s.group == contended {
		list = append(list, target{fmt.Sprintf("%s: commands/hand-over × %s", s.title, other.title), 1.0 / 3, true, than(commandsPerOp), ""})
	}
	return list
}
