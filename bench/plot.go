package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// figure is one plot: a scenario, and beside it the same on a network if both
// were measured.
type figure struct {
	file      string
	title     string
	scenarios []scenario
	draw      func(report, figure) []byte
}

// figures are the plots that stand at s in the report.
func (c campaign) figures(s scenario) (list []figure) {
	if _, measured := c.scenario(s.twin); measured {
		return nil // it stands beside its twin
	}
	for _, of := range s.series {
		list = append(list, figure{of.id + ".svg", of.title, []scenario{s}, func(r report, _ figure) []byte { return r.growthPlot(of) }})
	}
	if list != nil {
		return list
	}
	both := []scenario{s}
	for _, other := range c.scenarios {
		if other.twin == s.id {
			both = append(both, other)
		}
	}
	list = append(list, figure{s.id + ".svg", s.title, both, report.bars})
	if s.group == latency {
		list = append(list, figure{s.id + "-distribution.svg", s.title + ": distribution", both, report.distribution})
	}
	return list
}

func (c campaign) scenario(id string) (scenario, bool) {
	i := slices.IndexFunc(c.scenarios, func(s scenario) bool { return s.id == id })
	if i < 0 {
		return scenario{}, false
	}
	return c.scenarios[i], true
}

// filePrefix tells the plots of this program from other pictures in the folder.
const filePrefix = "bench-"

func (r report) path(f figure) string { return filepath.Join(r.out, filePrefix+f.file) }

// plot writes the plots of all scenarios.
func (r report) plot() error {
	if r.out == "" {
		return nil
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, s := range r.campaign.scenarios {
		for _, f := range r.campaign.figures(s) {
			if err := os.WriteFile(r.path(f), f.draw(r, f), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Measures of the plots.
const (
	plotWidth = 900.0
	margin    = 16.0
	headRoom  = 64.0 // of the title and the note below it
	rowHeight = 28.0
	barHeight = 16.0
	gap       = 8.0 // between a text and what it stands at
	footRoom  = 34.0
	scaleRoom = 70.0 // of the values at a vertical axis
	lineGap   = 16.0 // between two labels
)

// label is the adapter's name in a plot.
func (a adapter) label() string {
	if a.id == ours {
		return "redislock"
	}
	return a.title
}

func (a adapter) barClass() string {
	switch {
	case a.id == ours:
		return "bar us"
	case !a.isLock():
		return "bar ref"
	}
	return "bar"
}

// textClass makes our name stand out.
func (a adapter) textClass() string {
	if a.id == ours {
		return "us"
	}
	return ""
}

func (s scenario) place() string {
	if s.task.Network.delays() {
		return "network of " + s.task.Network.span()
	}
	return "loopback"
}

// head writes the title and the note below it.
func (d *svg) head(title, note string) {
	d.text(margin, 24, start, "title", title)
	d.text(margin, 46, start, "note", note)
}

// bars is the chart metric: the median as a bar, the rounds as a line from the
// least to the greatest. Names stand at the left of the bars, values at the
// right.
func (r report) bars(f figure) []byte {
	taking := r.campaign.taking(f.scenarios[0])
	var names []string
	for _, a := range taking {
		names = append(names, a.label())
	}
	left := margin + widest(names, textSize) + gap
	top := headRoom + rowHeight
	d := &svg{width: plotWidth, height: top + rowHeight*float64(len(taking)) + footRoom}
	d.head(f.title, f.scenarios[0].chartNote())
	for i, a := range taking {
		d.text(left-gap, top+rowHeight*(float64(i)+0.5), end, a.textClass(), a.label())
	}
	width := (plotWidth - left) / float64(len(f.scenarios))
	for i, s := range f.scenarios {
		r.barPanel(d, s, left+width*float64(i), top, width)
	}
	return d.file(f.title)
}

// chartNote says what the values are.
func (s scenario) chartNote() string {
	better := "less is better"
	if !s.chart.lessIsBetter() {
		better = "more is better"
	}
	spread := ""
	if s.rounds > 1 {
		spread = " (lines: least to greatest)"
	}
	return column{metric: s.chart}.title(s) + ", median of " + plural(s.rounds, "round") + spread + "; " + better
}

func (r report) barPanel(d *svg, s scenario, left, top, width float64) {
	taking := r.campaign.taking(s)
	spread := make([][]float64, len(taking))
	var all, values []float64
	var labels []string
	for i, a := range taking {
		rounds := r.results.rounds(s.id, a.id, s.chart)
		spread[i] = finite(rounds)
		all = append(all, spread[i]...)
		values = append(values, median(rounds))
		labels = append(labels, s.chart.show(values[i]))
	}
	_, high, _ := spans(all)
	x := s.chart.linearAxis(high)
	x.from, x.to = left, left+width-widest(labels, textSize)-2*gap-margin
	bottom := top + rowHeight*float64(len(taking))
	d.text(left, headRoom+rowHeight/2, start, "panel", s.place())
	for _, t := range x.ticks {
		d.line(x.at(t), top, x.at(t), bottom, "grid")
	}
	for _, t := range sparse(x) {
		d.text(x.at(t), bottom+footRoom/2, middle, "note", x.show(t))
	}
	for i, a := range taking {
		d.bar(x, a, top+rowHeight*(float64(i)+0.5), values[i], spread[i], labels[i])
	}
	d.line(left, top, left, bottom, "axis")
}

// sparse leaves out ticks whose texts would be close to each other.
func sparse(a axis) (kept []float64) {
	last := math.Inf(-1)
	for _, t := range a.ticks {
		half := widthOf(a.show(t), noteSize) / 2
		if a.at(t)-half > last+gap {
			kept, last = append(kept, t), a.at(t)+half
		}
	}
	return kept
}

func (d *svg) bar(x axis, a adapter, y, value float64, rounds []float64, label string) {
	tip := x.from
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		tip = x.at(value)
		d.rect(x.from, y-barHeight/2, tip-x.from, barHeight, a.barClass())
	}
	if low, high, ok := spans(rounds); ok && len(rounds) > 1 {
		d.line(x.at(low), y, x.at(high), y, "spread")
		tip = max(tip, x.at(high))
	}
	d.text(tip+gap, y, start, strings.TrimSpace("value "+a.textClass()), label)
}

// finite leaves out what cannot be drawn.
func finite(values []float64) (out []float64) {
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out = append(out, v)
		}
	}
	return out
}

// curve is one line of a plot.
type curve struct {
	name   string
	class  string
	points []xy
	dots   bool // at its points
}

// curveOf draws references dashed. The color is the adapter's in all plots.
func curveOf(a adapter, points []xy, dots bool) curve {
	class := "c6"
	switch i := slices.IndexFunc(adapters(), func(b adapter) bool { return a.id == b.id }); {
	case a.id == ours:
		class = "c0 us"
	case a.noLock:
		class = "c6 limit"
	case a.unsafe:
		class = "c6 ref"
	case i >= 0:
		class = [...]string{"c1", "c2", "c3", "c4", "c5"}[i%5]
	}
	return curve{a.label(), class, points, dots}
}

// panel is an area with curves in it.
type panel struct {
	title                    string
	x, y                     axis
	left, top, right, bottom float64 // of the area itself; texts stand outside
	curves                   []curve
}

// draw writes the name of each curve where it ends, so that no legend is needed.
func (d *svg) panel(p panel) {
	p.x.from, p.x.to = p.left, p.right
	p.y.from, p.y.to = p.bottom, p.top
	d.text(p.left, p.top-18, start, "panel", p.title)
	for _, t := range p.y.ticks {
		d.line(p.left, p.y.at(t), p.right, p.y.at(t), "grid")
		d.text(p.left-gap, p.y.at(t), end, "note", p.y.show(t))
	}
	d.line(p.left, p.bottom, p.right, p.bottom, "axis")
	for _, t := range sparse(p.x) {
		d.line(p.x.at(t), p.bottom, p.x.at(t), p.bottom+4, "axis")
		d.text(p.x.at(t), p.bottom+16, middle, "note", p.x.show(t))
	}
	var ends []xy
	var named []curve
	for _, c := range p.curves {
		if len(c.points) == 0 {
			continue
		}
		at := p.place(c)
		d.path(at, "curve "+c.class)
		if c.dots {
			for _, xy := range at {
				d.dot(xy.x, xy.y, 3, "dot "+c.class)
			}
		}
		ends, named = append(ends, at[len(at)-1]), append(named, c)
	}
	d.names(p, ends, named)
}

func (p panel) place(c curve) (at []xy) {
	for _, xy := range c.points {
		at = append(at, xyAt(p.x.at(xy.x), p.y.at(xy.y)))
	}
	return at
}

func xyAt(x, y float64) xy { return xy{x, y} }

// names writes the curves' names to the right of the area, each at the height of
// its curve's end, or as near to it as the others let it, with a line there.
func (d *svg) names(p panel, ends []xy, named []curve) {
	heights := make([]float64, len(ends))
	for i, e := range ends {
		heights[i] = e.y
	}
	heights = apart(heights, lineGap, p.top, p.bottom)
	for i, c := range named {
		to := p.right + 2*gap
		d.path([]xy{ends[i], {p.right + gap/2, ends[i].y}, {to, heights[i]}}, "lead "+c.class)
		d.text(to+gap/2, heights[i], start, c.class, c.name)
	}
}

// apart moves heights down until they are gap apart, and from the bottom up again
// where that takes them beyond it.
func apart(heights []float64, gap, top, bottom float64) []float64 {
	order := make([]int, len(heights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case heights[a] < heights[b]:
			return -1
		case heights[a] > heights[b]:
			return 1
		}
		return 0
	})
	out := slices.Clone(heights)
	least := top
	for _, i := range order { // downwards
		out[i] = max(out[i], least)
		least = out[i] + gap
	}
	most := bottom
	for _, i := range slices.Backward(order) { // and what is too low up again
		out[i] = min(out[i], most)
		most = out[i] - gap
	}
	return out
}

// shownShare is the last of the shares that a distribution shows: beyond it a few
// outliers would decide how wide the axis is.
const shownShare = 99.0

// distribution is how long which share of the hand-overs took.
func (r report) distribution(f figure) []byte {
	const height, rowRoom, areaTop = 260.0, 340.0, headRoom + 30
	d := &svg{width: plotWidth, height: areaTop + rowRoom*float64(len(f.scenarios)) - 40}
	d.head(f.title, "time within which a share of the hand-overs was done, up to 99 %; each curve's end has its name")
	var names []string
	for _, a := range r.campaign.taking(f.scenarios[0]) {
		names = append(names, a.label())
	}
	right := plotWidth - widest(names, textSize) - 3*gap - margin
	for i, s := range f.scenarios {
		top := areaTop + rowRoom*float64(i)
		d.panel(panel{
			title: s.place(), curves: r.quantileCurves(s), x: shares(), y: r.latencyAxis(s),
			left: scaleRoom, right: right, top: top, bottom: top + height,
		})
	}
	return d.file(f.title)
}

func shares() axis {
	return axis{high: 100, ticks: []float64{0, 25, 50, 75, 100}, show: tickPercent}
}

func (r report) quantileCurves(s scenario) (curves []curve) {
	for _, a := range r.campaign.taking(s) {
		curves = append(curves, curveOf(a, quantiles(r.results.latencies(s.id, a.id)), false))
	}
	return curves
}

// latencyAxis spans what the curves of s show.
func (r report) latencyAxis(s scenario) axis {
	var all []float64
	for _, c := range r.quantileCurves(s) {
		for _, p := range c.points {
			all = append(all, p.y)
		}
	}
	return metricAxis(latencyMedian, all, true)
}

// quantiles are in seconds, at each percent from 1 to shownShare.
func quantiles(latencies []time.Duration) (points []xy) {
	sorted := slices.Sorted(slices.Values(latencies))
	sorted = slices.DeleteFunc(sorted, func(d time.Duration) bool { return d <= 0 })
	if len(sorted) == 0 {
		return nil
	}
	for share := 1.0; share <= shownShare; share++ {
		rank := int(math.Ceil(share/100*float64(len(sorted)))) - 1
		points = append(points, xy{share, sorted[max(rank, 0)].Seconds()})
	}
	return points
}

// wide is by how much values must differ for a logarithmic axis.
const wide = 12

// metricAxis spans positive values of m.
func metricAxis(m metric, values []float64, logarithmic bool) axis {
	low, high, ok := spans(values)
	if !ok {
		return m.linearAxis(1)
	}
	if low > 0 && (logarithmic || high > wide*low) {
		return logAxis(low/1.15, high*1.15, m.powers(), 7, m.tick)
	}
	return m.linearAxis(high)
}

// growthPlot is four plots of a series, one for each metric.
func (r report) growthPlot(s series) []byte {
	const height, rowRoom, areaTop = 190.0, 270.0, headRoom + 34
	columns := growthColumns()
	d := &svg{width: plotWidth, height: areaTop + rowRoom*float64((len(columns)+1)/2) - 24}
	d.head(s.title, "medians over "+plural(s.points[0].scenario.rounds, "round")+", by the number of "+s.many+"; a curve ends early where nothing went on; less is better")
	var names []string
	for _, a := range r.campaign.taking(s.points[0].scenario) {
		names = append(names, a.label())
	}
	room, width := widest(names, textSize)+3*gap+margin, plotWidth/2
	for i, m := range columns {
		left, top := width*float64(i%2), areaTop+rowRoom*float64(i/2)
		curves := r.growthCurves(s, m)
		d.panel(panel{
			title: column{metric: m}.title(s.points[0].scenario), curves: curves, x: s.axis(), y: growthAxis(m, curves),
			left: left + scaleRoom, right: left + width - room, top: top, bottom: top + height,
		})
	}
	return d.file(s.title)
}

func (r report) growthCurves(s series, m metric) (curves []curve) {
	for _, a := range r.campaign.taking(s.points[0].scenario) {
		var points []xy
		for _, p := range s.points {
			v := r.results.median(p.scenario.id, a.id, m)
			if len(finite([]float64{v})) > 0 {
				points = append(points, xy{float64(p.many), v})
			}
		}
		curves = append(curves, curveOf(a, points, true))
	}
	return curves
}

func growthAxis(m metric, curves []curve) axis {
	var all []float64
	for _, c := range curves {
		for _, p := range c.points {
			all = append(all, p.y)
		}
	}
	return metricAxis(m, all, false)
}

// axis has a tick at each point.
func (s series) axis() axis {
	a := axis{log: true, show: tickCount, low: float64(s.points[0].many), high: float64(s.points[len(s.points)-1].many)}
	for _, p := range s.points {
		a.ticks = append(a.ticks, float64(p.many))
	}
	if a.low == a.high {
		a.high *= 2
	}
	return a
}
