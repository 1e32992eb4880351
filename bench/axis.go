package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// axis maps values onto a stretch of a drawing.
type axis struct {
	low, high float64 // values at the two ends
	log       bool
	from, to  float64 // their coordinates
	ticks     []float64
	show      func(float64) string
}

// at is the coordinate of a value. One beyond the end is at the end.
func (a axis) at(v float64) float64 {
	share := (v - a.low) / (a.high - a.low)
	if a.log {
		share = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return a.from + min(max(share, 0), 1)*(a.to-a.from)
}

// linearAxis goes from 0 to the tick at or above high, in four steps at most.
func (m metric) linearAxis(high float64) axis {
	if !(high > 0) || math.IsInf(high, 0) {
		high = 1
	}
	unit := 1.0
	for m.isBytes() && unit*1024 <= high {
		unit *= 1024
	}
	step := niceStep(high/unit/4) * unit
	a := axis{show: m.tick, high: math.Ceil(high/step-1e-9) * step}
	for i := 0; float64(i)*step <= a.high*(1+1e-9); i++ {
		a.ticks = append(a.ticks, float64(i)*step)
	}
	return a
}

// niceStep is 1, 2 or 5 times a power of ten, and not below least.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= least*(1-1e-9) {
			return n * power
		}
	}
	return 10 * power
}

// logAxis spans low to high, with ticks at the powers, all or each second or
// third, and where these are few at their 2- and 5-fold too.
func logAxis(low, high float64, powers []float64, most int, show func(float64) string) axis {
	a := axis{low: low, high: high, log: true, show: show}
	if high < low*2 { // one value, or nearly so
		a.low, a.high = low/2, high*2
	}
	a.ticks = a.multiples(powers, 1, 2, 5)
	if len(a.ticks) > most {
		a.ticks = a.multiples(powers, 1)
	}
	a.ticks = thin(a.ticks, most)
	return a
}

func (a axis) multiples(powers []float64, factors ...float64) (ticks []float64) {
	for _, p := range powers {
		for _, f := range factors {
			if v := f * p; v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// thin keeps each n-th, so that no more than most remain.
func thin(ticks []float64, most int) (kept []float64) {
	n := max(1, (len(ticks)+most-1)/most)
	for i := 0; i < len(ticks); i += n {
		kept = append(kept, ticks[i])
	}
	return kept
}

// powers are where a logarithmic axis of m may have its ticks: powers of ten, for
// bytes those of their units.
func (m metric) powers() (out []float64) {
	if m.isBytes() {
		for unit := 1.0; unit <= 1<<40; unit *= 1 << 10 {
			out = append(out, unit, 10*unit, 100*unit)
		}
		return out
	}
	for p := -9; p <= 12; p++ {
		out = append(out, math.Pow10(p))
	}
	return out
}

// tick writes a value of m as short as it can be at an axis.
func (m metric) tick(v float64) string {
	switch {
	case v == 0:
		return "0"
	case m.isTime():
		return tickTime(v)
	case m.isShare():
		return short(100*v) + " %"
	case m.isBytes():
		return tickBytes(v)
	}
	return tickCount(v)
}

func tickTime(seconds float64) string {
	switch {
	case seconds < time.Millisecond.Seconds()*(1-1e-9):
		return short(seconds*1e6) + " µs"
	case seconds < 1-1e-9:
		return short(seconds*1e3) + " ms"
	}
	return short(seconds) + " s"
}

func tickCount(v float64) string {
	switch {
	case v >= 1e6*(1-1e-9):
		return short(v/1e6) + "M"
	case v >= 1e3*(1-1e-9):
		return short(v/1e3) + "k"
	}
	return short(v)
}

func tickBytes(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}} {
		if v >= unit.size*(1-1e-9) {
			return short(v/unit.size) + unit.name
		}
	}
	return short(v) + " B"
}

// short writes three digits that count, without zeros behind the point.
func short(v float64) string {
	if v == 0 {
		return "0"
	}
	places := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	rounded := math.Round(v*math.Pow(10, float64(places))) / math.Pow(10, float64(places))
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

func tickPercent(v float64) string { return fmt.Sprintf("%g %%", v) }

// spans returns the least and the greatest of the values.
func spans(values []float64) (low, high float64, ok bool) {
	if len(values) == 0 {
		return 0, 0, false
	}
	return slices.Min(values), slices.Max(values), true
}
