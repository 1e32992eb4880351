package main

import (
	"math"
	"slices"
	"time"
)

// metric is one quantity that is measured. "Op" is what the scenario says: a
// cycle of acquire and release, or a hand-over.
type metric string

const (
	timePerOp      metric = "time/op"
	opsPerSecond   metric = "ops/s"
	sectionsRate   metric = "sections/s"
	commandsPerOp  metric = "commands/op"
	commandsRate   metric = "commands/s"
	serverTime     metric = "server time/op"
	serverCPUPerOp metric = "server CPU/op"
	clientCPUPerOp metric = "client CPU/op"
	serverShare    metric = "server CPU"
	clientShare    metric = "client CPU"
	allocsPerOp    metric = "allocs/op"
	fairGoroutines metric = "fairness, goroutines"
	fairProcesses  metric = "fairness, processes"
	latencyMedian  metric = "median"
	latencyP99     metric = "p99"
	goroutines     metric = "goroutines"
	connections    metric = "connections"
	bytesEach      metric = "memory each"
	redisMemory    metric = "Redis memory"
	clientMemory   metric = "client memory"
)

// sample is what one adapter showed in one round of a scenario.
type sample struct {
	values    map[metric]float64
	latencies []time.Duration
}

func (s sample) value(m metric) float64 {
	if v, ok := s.values[m]; ok {
		return v
	}
	return math.NaN()
}

// window is what was seen between begin and end of a measurement.
type window struct {
	elapsed    time.Duration
	ops        float64
	sections   float64
	violations uint64
	counts     [][]float64 // sections of each goroutine of each process
	server     serverUsage
	client     result  // of all processes
	memory     float64 // of the keys in Redis
}

func (w window) sample() sample {
	seconds := w.elapsed.Seconds()
	return sample{latencies: w.client.Latencies, values: map[metric]float64{
		timePerOp:      seconds / w.ops,
		opsPerSecond:   w.ops / seconds,
		sectionsRate:   w.sections / seconds,
		commandsPerOp:  w.server.commands / w.ops,
		commandsRate:   w.server.commands / seconds,
		serverTime:     w.server.time.Seconds() / w.ops,
		serverCPUPerOp: w.server.cpu.Seconds() / w.ops,
		clientCPUPerOp: w.client.CPU.Seconds() / w.ops,
		serverShare:    w.server.cpu.Seconds() / seconds,
		clientShare:    w.client.CPU.Seconds() / seconds,
		allocsPerOp:    float64(w.client.Allocs) / w.ops,
		fairGoroutines: jain(slices.Concat(w.counts...)),
		fairProcesses:  jain(sums(w.counts)),
		latencyMedian:  quantile(w.client.Latencies, 0.5),
		latencyP99:     quantile(w.client.Latencies, 0.99),
		goroutines:     float64(w.client.Goroutines),
		connections:    float64(w.server.connections),
		bytesEach:      w.client.Bytes,
		redisMemory:    w.memory,
		clientMemory:   w.client.Memory,
	}}
}

// lessIsBetter is false where more is.
func (m metric) lessIsBetter() bool {
	switch m {
	case opsPerSecond, sectionsRate, fairGoroutines, fairProcesses:
		return false
	}
	return true
}

func (m metric) isTime() bool {
	switch m {
	case timePerOp, serverTime, serverCPUPerOp, clientCPUPerOp, latencyMedian, latencyP99:
		return true
	}
	return false
}

func (m metric) isShare() bool { return m == serverShare || m == clientShare }

func (m metric) isBytes() bool {
	return m == bytesEach || m == redisMemory || m == clientMemory
}
