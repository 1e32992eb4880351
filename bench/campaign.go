package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// campaign is all that one call of the program measures.
type campaign struct {
	scenarios []scenario
	adapters  []adapter
	admin     *redis.Client
	progress  io.Writer
}

// results is what a campaign found. Of each scenario, adapters have a sample for
// each round; one that failed is empty.
type results struct {
	samples    map[string]map[string][]sample // by scenario, by adapter
	failures   []string
	violations []string
	checked    float64 // sections that were checked for exclusion
	took       time.Duration
}

func (c campaign) run(ctx context.Context) (*results, error) {
	start := time.Now()
	r := &results{samples: make(map[string]map[string][]sample)}
	for _, s := range c.scenarios {
		if err := c.measure(ctx, s, r); err != nil {
			return nil, err
		}
	}
	r.took = time.Since(start)
	return r, nil
}

// measure takes all rounds of a scenario.
func (c campaign) measure(ctx context.Context, s scenario, r *results) error {
	parts := s.parts()
	for _, part := range parts {
		r.samples[part.id] = make(map[string][]sample)
	}
	for round := range s.rounds {
		for _, part := range parts {
			part.task.Network.Seed = uint64(round) // another jitter in each round, the same one for all adapters
			if err := c.round(ctx, part, round, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// order is that of the adapters in a round. Another one begins each time, since
// the first finds a machine that is cooler than the last does.
func (c campaign) order(s scenario, round int) []adapter {
	taking := c.taking(s)
	if len(taking) == 0 {
		return nil
	}
	first := round % len(taking)
	return slices.Concat(taking[first:], taking[:first])
}

func (c campaign) round(ctx context.Context, s scenario, round int, r *results) error {
	for _, a := range c.order(s, round) {
		_, _ = fmt.Fprintf(c.progress, "%s, round %d of %d: %s\n", s.title, round+1, s.rounds, a.title)
		w, err := measure(ctx, s, a, c.admin)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.add(s, a, w, err)
	}
	return nil
}

// taking is the adapters that take part in s.
func (c campaign) taking(s scenario) (out []adapter) {
	for _, a := range c.adapters {
		if a.groups&s.group != 0 {
			out = append(out, a)
		}
	}
	return out
}

func (r *results) add(s scenario, a adapter, w window, err error) {
	taken := sample{}
	if err != nil {
		r.failures = append(r.failures, fmt.Sprintf("%s, %s: %v", s.title, a.title, err))
	} else {
		taken = w.sample()
	}
	if w.violations > 0 {
		r.violations = append(r.violations, fmt.Sprintf("%s, %s: %d times", s.title, a.title, w.violations))
	}
	if s.group == contended || s.group == manyWaiters || (s.group == latency && !a.noLock) {
		r.checked += w.sections
	}
	r.samples[s.id][a.id] = append(r.samples[s.id][a.id], taken)
}

// rounds returns a metric of each round.
func (r *results) rounds(scenario, adapter string, m metric) (out []float64) {
	for _, s := range r.samples[scenario][adapter] {
		out = append(out, s.value(m))
	}
	return out
}

func (r *results) median(scenario, adapter string, m metric) float64 {
	return median(r.rounds(scenario, adapter, m))
}

// ratio is the median over the rounds of the ratio of two adapters.
func (r *results) ratio(scenario, adapter, against string, m metric) float64 {
	return median(ratios(r.rounds(scenario, adapter, m), r.rounds(scenario, against, m)))
}

func (r *results) latencies(scenario, adapter string) (out []time.Duration) {
	for _, s := range r.samples[scenario][adapter] {
		out = append(out, s.latencies...)
	}
	return out
}

// fastest returns the other library that does best in the scenario, if any was
// measured.
func (c campaign) fastest(r *results, s scenario) (best adapter, ok bool) {
	for _, a := range c.taking(s) {
		v := r.median(s.id, a.id, s.chart)
		if !a.library || math.IsNaN(v) {
			continue
		}
		if !ok || better(s.chart, v, r.median(s.id, best.id, s.chart)) {
			best, ok = a, true
		}
	}
	return best, ok
}

func better(m metric, a, b float64) bool {
	if m.lessIsBetter() {
		return a < b
	}
	return a > b
}
