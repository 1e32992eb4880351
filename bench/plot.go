package main

import (
	"bytes"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 20 * vg.Centimeter
	plotHeight = 9 * vg.Centimeter
	plotMargin = 0.5 * vg.Centimeter
	barWidth   = 0.5 * vg.Centimeter
)

var (
	ourColor = color.RGBA{R: 0xc0, G: 0x39, B: 0x2b, A: 0xff}
	barColor = color.RGBA{R: 0x7f, G: 0x8c, B: 0x9b, A: 0xff}

	// lineColors are told apart also by those who see no red or no green.
	lineColors = []color.Color{
		color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
		color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
		color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
		color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
		color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	}
	dashes = []vg.Length{vg.Points(4), vg.Points(3)}
)

// plots are the files that a scenario has.
func (s scenario) plots() []string {
	files := []string{s.id + ".svg"}
	if s.group == latency {
		files = append(files, s.id+"-distribution.svg")
	}
	return files
}

// plot writes the plots of all scenarios.
func (r report) plot() error {
	if r.out == "" {
		return nil
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, s := range r.campaign.scenarios {
		drawn := []func(scenario) (*plot.Plot, error){r.bars, r.distribution}
		for i, file := range s.plots() {
			p, err := drawn[i](s)
			if err != nil {
				return err
			}
			if err := save(p, filepath.Join(r.out, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// save keeps a margin, which long labels need.
func save(p *plot.Plot, path string) error {
	canvas := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.Crop(draw.New(canvas), plotMargin, -plotMargin, plotMargin, -plotMargin))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// bars is the chart metric of a scenario: the median as a bar, each round as a
// dot.
func (r report) bars(s scenario) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = s.title
	scale, unit := s.chart.axis()
	p.X.Label.Text = column{metric: s.chart}.title(s) + unit
	p.X.Min = 0
	taking := r.campaign.taking(s)
	slices.Reverse(taking) // the first on top
	var labels []string
	for i, a := range taking {
		labels = append(labels, a.title)
		values := finite(r.results.rounds(s.id, a.id, s.chart), scale)
		if len(values) == 0 {
			continue
		}
		if err := addBar(p, a, float64(i), values); err != nil {
			return nil, err
		}
	}
	p.NominalY(labels...)
	return p, nil
}

func addBar(p *plot.Plot, a adapter, at float64, values []float64) error {
	bar, err := plotter.NewBarChart(plotter.Values{median(values)}, barWidth)
	if err != nil {
		return err
	}
	bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, at, 0, barColor
	if a.id == ours {
		bar.Color = ourColor
	}
	dots := make(plotter.XYs, len(values))
	for i, v := range values {
		dots[i] = plotter.XY{X: v, Y: at}
	}
	rounds, err := plotter.NewScatter(dots)
	if err != nil {
		return err
	}
	rounds.Shape, rounds.Radius = draw.CircleGlyph{}, vg.Points(1.5)
	p.Add(bar, rounds)
	return nil
}

// axis is what to multiply the metric by on an axis, and the unit to add.
func (m metric) axis() (scale float64, unit string) {
	switch m {
	case timePerOp, latencyMedian:
		return 1e6, " (µs)"
	case clientShare:
		return 100, " (% of one core)"
	}
	return 1, ""
}

// finite leaves out what cannot be drawn.
func finite(values []float64, scale float64) (out []float64) {
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out = append(out, v*scale)
		}
	}
	return out
}

// distribution is the share of hand-overs that took no longer than so long.
func (r report) distribution(s scenario) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = s.title
	p.X.Label.Text, p.Y.Label.Text = "µs", "share of hand-overs"
	for i, a := range r.campaign.taking(s) {
		points := cumulate(r.results.latencies(s.id, a.id))
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.LineStyle = lineStyle(a, i)
		p.Add(line)
		p.Legend.Add(a.title, line)
	}
	p.Y.Min, p.Y.Max = 0, 1
	if p.X.Min > 0 && p.X.Min < p.X.Max { // else there is nothing to show, which a logarithmic axis does not like
		p.X.Max *= roomForLegend
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	return p, nil
}

// roomForLegend is how much further than the data the axis goes.
const roomForLegend = 100

// lineStyle dashes the references.
func lineStyle(a adapter, i int) draw.LineStyle {
	style := draw.LineStyle{Color: lineColors[i%len(lineColors)], Width: vg.Points(1)}
	if !a.isLock() {
		style.Dashes, style.Color = dashes, color.Gray{Y: 0x60}
	}
	if a.noLock {
		style.Color = color.Gray{Y: 0xb0}
	}
	if a.id == ours {
		style.Color, style.Width = ourColor, vg.Points(2)
	}
	return style
}

// cumulate returns the cumulative distribution, in microseconds.
func cumulate(latencies []time.Duration) plotter.XYs {
	var points plotter.XYs
	for i, d := range slices.Sorted(slices.Values(latencies)) {
		if d > 0 {
			points = append(points, plotter.XY{X: float64(d) / 1e3, Y: float64(i+1) / float64(len(latencies))})
		}
	}
	return points
}
