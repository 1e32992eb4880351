package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 2}, 2},
		{[]float64{nan, 4, nan, 2, 100}, 4},
		{[]float64{1, inf, inf}, inf},
	} {
		require.InDelta(t, c.want, median(c.values), 0, c.values)
	}
	require.True(t, math.IsNaN(median(nil)))
	require.True(t, math.IsNaN(median([]float64{nan})))

	unsorted := []float64{3, 1, 2}
	median(unsorted)
	require.Equal(t, []float64{3, 1, 2}, unsorted, "the rounds keep their order")
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Second)
	}
	require.InDelta(t, 50, quantile(hundred, 0.5), 0)
	require.InDelta(t, 99, quantile(hundred, 0.99), 0)
	require.InDelta(t, 1, quantile(hundred, 0), 0)
	require.InDelta(t, 100, quantile(hundred, 1), 0)
	require.InDelta(t, 7, quantile([]time.Duration{7 * time.Second}, 0.99), 0)
	require.True(t, math.IsNaN(quantile(nil, 0.5)))
}

func TestJain(t *testing.T) {
	require.InDelta(t, 1, jain([]float64{5, 5, 5}), 1e-9)
	require.InDelta(t, 0.25, jain([]float64{0, 8, 0, 0}), 1e-9)
	require.InDelta(t, 0.9, jain([]float64{1, 2}), 1e-9)
	require.True(t, math.IsNaN(jain([]float64{0, 0})), "nobody had a turn")
}

func TestSums(t *testing.T) {
	require.Equal(t, []float64{3, 7}, sums([][]float64{{1, 2}, {3, 4}}))
}

// The rounds of one are divided by the same rounds of the other, not median by
// median.
func TestRatiosAreFormedWithinRounds(t *testing.T) {
	samples := func(values ...float64) (out []sample) {
		for _, v := range values {
			out = append(out, sample{values: map[metric]float64{timePerOp: v}})
		}
		return out
	}
	r := &results{samples: map[string]map[string][]sample{serial: {
		ours: samples(1, 10, 100), pair: append(samples(2, 5), sample{}),
	}}}
	require.InDelta(t, 10, r.median(serial, ours, timePerOp), 0)
	require.InDelta(t, 1.25, r.ratio(serial, ours, pair, timePerOp), 1e-9, "the median of 0.5, 2 and a round that failed")
	require.True(t, math.IsNaN(r.ratio(serial, ours, queue, timePerOp)))
}

func TestParseInfo(t *testing.T) {
	u := parseInfo("# Clients\r\nconnected_clients:12\r\n# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:0.25\r\n"+
		"used_cpu_sys_children:9\r\ncmdstat_get:calls=7,usec=70,usec_per_call=10.00\r\n"+
		"cmdstat_evalsha:calls=3,usec=100,usec_per_call=33.33\r\ncmdstat_eval:calls=1,usec=50,usec_per_call=50.00\r\n",
		[]string{"eval", "evalsha", "set"})
	require.Equal(t, serverUsage{commands: 4, time: 150 * time.Microsecond, cpu: 1750 * time.Millisecond, connections: 12}, u)

	later := serverUsage{commands: 10, time: time.Second, cpu: 3 * time.Second, connections: 3}
	require.Equal(t, serverUsage{commands: 6, time: 999850 * time.Microsecond, cpu: 1250 * time.Millisecond, connections: 3}, later.since(u))
}

func TestShow(t *testing.T) {
	for want, got := range map[string]string{
		"1.25 ms":  latencyMedian.show(0.00125),
		"85.3 µs":  timePerOp.show(85.31e-6),
		"0.42 µs":  serverTime.show(0.42e-6),
		"2.90 %":   clientShare.show(0.029),
		"5.29 KiB": bytesEach.show(5.29 * 1024),
		"12345":    opsPerSecond.show(12345.4),
		"1.00":     fairGoroutines.show(0.999),
		"0":        commandsRate.show(0),
		"∞":        timePerOp.show(math.Inf(1)),
		"–":        showRatio(math.NaN()),
		"0.034":    showRatio(0.0344),
	} {
		require.Equal(t, want, got)
	}
}
