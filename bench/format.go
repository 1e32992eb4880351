package main

import (
	"fmt"
	"math"
	"time"
)

// show is how the report writes a value of the metric.
func (m metric) show(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	}
	switch {
	case m.isTime():
		return showTime(v)
	case m.isShare():
		return digits(100*v) + " %"
	case m.isBytes():
		return showBytes(v)
	case m == fairGoroutines || m == fairProcesses:
		return fmt.Sprintf("%.2f", v)
	}
	return digits(v)
}

func showBytes(v float64) string {
	switch {
	case math.Abs(v) >= 1<<20:
		return digits(v/(1<<20)) + " MiB"
	case math.Abs(v) >= 100 || v == 0:
		return digits(v/(1<<10)) + " KiB"
	}
	return digits(v) + " B"
}

func showRatio(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	}
	return digits(v)
}

func showTime(seconds float64) string {
	if seconds < time.Millisecond.Seconds() {
		return digits(seconds*1e6) + " µs"
	}
	return digits(seconds*1e3) + " ms"
}

// digits writes three digits that count, or all of a whole part that is longer.
func digits(v float64) string {
	switch size := math.Abs(v); {
	case size >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	case size >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}
