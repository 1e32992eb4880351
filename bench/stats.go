package main

import (
	"math"
	"slices"
	"time"
)

// median leaves out what is no number. It is NaN if nothing remains.
func median(values []float64) float64 {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

// quantile is the smallest value that at least the share q of all do not exceed,
// in seconds.
func quantile(durations []time.Duration, q float64) float64 {
	if len(durations) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(rank, 0)].Seconds()
}

// jain is Jain's fairness index: 1 if all have the same, 1/n if one has it all.
func jain(counts []float64) float64 {
	var sum, squares float64
	for _, n := range counts {
		sum += n
		squares += n * n
	}
	return sum * sum / (squares * float64(len(counts)))
}

func sums(counts [][]float64) []float64 {
	out := make([]float64, len(counts))
	for i, row := range counts {
		for _, n := range row {
			out[i] += n
		}
	}
	return out
}

// ratios divides round by round, since what disturbs a round disturbs all that is
// measured in it.
func ratios(values, references []float64) []float64 {
	out := make([]float64, min(len(values), len(references)))
	for i := range out {
		out[i] = values[i] / references[i]
	}
	return out
}
