package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// box is where a text is, in a font that is wider than most.
type box struct {
	text                     string
	left, top, right, bottom float64
}

func (b box) overlaps(o box) bool {
	return b.left < o.right && o.left < b.right && b.top < o.bottom && o.top < b.bottom
}

// requireReadable wants well-formed XML in which no text lies on another one or
// leaves the picture.
func requireReadable(t *testing.T, file []byte) {
	t.Helper()
	require.NotContains(t, string(file), "NaN")
	require.NotContains(t, string(file), "Inf")
	width, height, boxes := textsOf(t, file)
	require.NotEmpty(t, boxes)
	for i, b := range boxes {
		require.GreaterOrEqual(t, b.left, 0.0, b.text)
		require.GreaterOrEqual(t, b.top, 0.0, b.text)
		require.LessOrEqual(t, b.right, width, b.text)
		require.LessOrEqual(t, b.bottom, height, b.text)
		for _, o := range boxes[:i] {
			require.False(t, b.overlaps(o), "%q lies on %q", b.text, o.text)
		}
	}
}

func textsOf(t *testing.T, file []byte) (width, height float64, boxes []box) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(file))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return width, height, boxes
		}
		require.NoError(t, err)
		switch e, _ := token.(xml.StartElement); e.Name.Local {
		case "svg":
			width, height = number(t, e, "width"), number(t, e, "height")
		case "text":
			var content string
			require.NoError(t, d.DecodeElement(&content, &e))
			boxes = append(boxes, boxOf(t, e, content))
		}
	}
}

func boxOf(t *testing.T, e xml.StartElement, content string) box {
	t.Helper()
	classes := strings.Fields(attribute(e, "class"))
	size, em := textSize, wideEm
	for _, c := range classes {
		switch c {
		case "title":
			size, em = titleSize, wideBoldEm
		case "note":
			size = noteSize
		case "panel", "us":
			em = wideBoldEm
		}
	}
	x, y := number(t, e, "x"), number(t, e, "y")
	room := float64(len([]rune(content))) * size * em
	left := x - room*map[string]float64{"start": 0, "middle": 0.5, "end": 1}[attribute(e, "text-anchor")]
	return box{content, left, y - size/2, left + room, y + size/2}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func number(t *testing.T, e xml.StartElement, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(attribute(e, name), 64)
	require.NoError(t, err)
	return v
}

// madeUp is a report on results that value makes up, of all scenarios.
func madeUp(rounds int, value func(scenario, adapter, metric) float64) report {
	p := fullPlan()
	p.setRounds(rounds)
	c := campaign{scenarios: scenarios(p), adapters: adapters()}
	r := &results{samples: map[string]map[string][]sample{}}
	for _, s := range allParts(p) {
		r.samples[s.id] = map[string][]sample{}
		for _, a := range c.taking(s) {
			for round := range s.rounds {
				taken := sample{values: map[metric]float64{}}
				for _, m := range append(growthColumns(), s.chart, latencyP99, opsPerSecond) {
					taken.values[m] = value(s, a, m) * (1 + float64(round)/10)
				}
				if s.group == latency && taken.values[s.chart] < 1e6 {
					for i := range 200 {
						taken.latencies = append(taken.latencies, time.Duration(taken.values[s.chart]*float64(i)*1e7))
					}
				}
				r.samples[s.id][a.id] = append(r.samples[s.id][a.id], taken)
			}
		}
	}
	return report{campaign: c, results: r, out: "plots"}
}

func (r report) everyFigure(t *testing.T, check func(file []byte)) {
	t.Helper()
	drawn := 0
	for _, s := range r.campaign.scenarios {
		for _, f := range r.campaign.figures(s) {
			check(f.draw(r, f))
			drawn++
		}
	}
	require.GreaterOrEqual(t, drawn, 15)
}

// Whatever the values are, each plot can be read.
func TestPlotsAreReadable(t *testing.T) {
	spread := func(s scenario, a adapter, _ metric) float64 {
		return float64(1+len(a.id)%7) * math.Pow(1.7, float64(len(s.id))) * 1e-5
	}
	for name, value := range map[string]func(scenario, adapter, metric) float64{
		"spread": spread,
		"large": func(s scenario, a adapter, m metric) float64 {
			if m.isTime() {
				return 1e3 * spread(s, a, m)
			}
			return 1e9 * spread(s, a, m)
		},
		"all the same": func(_ scenario, _ adapter, m metric) float64 {
			if m.isTime() {
				return 104e-6
			}
			return 12345
		},
		"zero":         func(scenario, adapter, metric) float64 { return 0 },
		"not measured": func(scenario, adapter, metric) float64 { return math.NaN() },
		"stood still":  func(scenario, adapter, metric) float64 { return math.Inf(1) },
		"some":         func(s scenario, a adapter, m metric) float64 { return spread(s, a, m) / float64(len(a.id)%3) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, rounds := range []int{1, 5} {
				madeUp(rounds, value).everyFigure(t, func(file []byte) { requireReadable(t, file) })
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		r := madeUp(1, spread)
		r.results.samples = nil
		r.everyFigure(t, func(file []byte) { requireReadable(t, file) })
	})
}

func TestPlotsAreLightAndDark(t *testing.T) {
	madeUp(1, func(scenario, adapter, metric) float64 { return 1 }).everyFigure(t, func(file []byte) {
		require.Contains(t, string(file), "@media (prefers-color-scheme: dark)")
		require.NotContains(t, string(file), "textLength")
	})
}

func TestTextsAreEscaped(t *testing.T) {
	d := &svg{width: 100, height: 20}
	d.text(0, 10, start, "note", `a<b> & "c" 'd'`)
	file := d.file(`<title> & "quotes"`)
	_, _, boxes := textsOf(t, file)
	require.Equal(t, `a<b> & "c" 'd'`, boxes[0].text)
	require.NotContains(t, string(file), "<b>")
}

// A coordinate that is no number never gets into a file.
func TestCoordinates(t *testing.T) {
	require.Equal(t, "1.2", px(1.23))
	require.Equal(t, "-3", px(-3.04))
	require.Panics(t, func() { px(math.NaN()) })
	require.Panics(t, func() { px(math.Inf(-1)) })
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		axis axis
		want string
	}{
		{opsPerSecond.linearAxis(21000), "0 10k 20k 30k"},
		{opsPerSecond.linearAxis(9.9e6), "0 5M 10M"},
		{opsPerSecond.linearAxis(1), "0 0.5 1"},
		{opsPerSecond.linearAxis(0), "0 0.5 1"},
		{timePerOp.linearAxis(104e-6), "0 50 µs 100 µs 150 µs"},
		{timePerOp.linearAxis(2.4e-3), "0 1 ms 2 ms 3 ms"},
		{clientShare.linearAxis(0.024), "0 1 % 2 % 3 %"},
		{redisMemory.linearAxis(2900), "0 1 KiB 2 KiB 3 KiB"},
		{metricAxis(latencyMedian, []float64{2e-4, 0.3}, true), "1 ms 10 ms 100 ms"},
		{metricAxis(latencyMedian, []float64{1e-3, 3e-3}, true), "1 ms 2 ms"},
		{metricAxis(clientMemory, []float64{300 << 10, 70 << 20}, false), "500 KiB 1 MiB 2 MiB 5 MiB 10 MiB 20 MiB 50 MiB"},
		{metricAxis(commandsPerOp, []float64{1, 1.01}, false), "0 0.5 1 1.5"},
	} {
		var shown []string
		for _, tick := range c.axis.ticks {
			shown = append(shown, c.axis.show(tick))
		}
		require.Equal(t, c.want, strings.Join(shown, " "))
	}
}

func TestLabelsAreApart(t *testing.T) {
	for _, c := range []struct{ heights, want []float64 }{
		{[]float64{50}, []float64{50}},
		{[]float64{50, 50, 50}, []float64{50, 60, 70}},
		{[]float64{95, 20, 94}, []float64{100, 20, 90}},
		{[]float64{100, 100, 100}, []float64{80, 90, 100}},
	} {
		require.Equal(t, c.want, apart(c.heights, 10, 0, 100))
	}
}

func TestQuantilesEndBeforeTheOutliers(t *testing.T) {
	var latencies []time.Duration
	for i := range 1000 {
		latencies = append(latencies, time.Duration(1000-i)*time.Millisecond)
	}
	points := quantiles(latencies)
	require.Len(t, points, 99)
	require.Equal(t, xy{1, 0.010}, points[0])
	require.Equal(t, xy{99, 0.990}, points[98])
	require.Nil(t, quantiles(nil))
	require.Nil(t, quantiles([]time.Duration{0, -1}), "a logarithmic axis has no place for them")
}
