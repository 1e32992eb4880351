package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// svg is a drawing in the making. Its look is in classes, for a light and a dark
// page: GitHub shows the file as an image, to which the page's own style does not
// apply but prefers-color-scheme does.
//
// A library for plots would have chosen the width of every text from metrics of a
// font that the reader may not have. Here texts are anchored where they belong,
// and have room for a font that is wider than most.
type svg struct {
	width, height float64
	body          strings.Builder
}

const (
	textSize  = 13.0
	titleSize = 16.0
	noteSize  = 12.0

	// wideEm is the width of a letter in a wide font, as a share of its size, and
	// wideBoldEm that of a bold one. Sans-serif fonts have 0.5 to 0.6 on average,
	// monospaced ones 0.6.
	wideEm     = 0.62
	wideBoldEm = 0.7

	// centred moves a text down so that its middle is at the given height.
	centred = "0.35em"
)

// widthOf is room enough for a text.
func widthOf(text string, size float64) float64 {
	return float64(len([]rune(text))) * size * wideEm
}

// widest is room enough for each of the texts.
func widest(texts []string, size float64) (room float64) {
	for _, t := range texts {
		room = max(room, widthOf(t, size))
	}
	return room
}

// style uses neither variables nor nesting, which some renderers do not know.
const style = `
text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.note { font-size: 12px; fill: #59636e }
.panel, .us { font-weight: 600 }
.page { fill: #ffffff }
.value { stroke: #ffffff; stroke-width: 4; stroke-linejoin: round; paint-order: stroke }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.axis { stroke: #818b98; stroke-width: 1 }
.bar { fill: #9aa4af }
.bar.us { fill: #0969da }
.bar.ref { fill: #d1d9e0 }
.spread { stroke: #1f2328; stroke-width: 1.5; opacity: 0.55 }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round }
.lead { fill: none; stroke-width: 1; stroke-dasharray: 1 3 }
.curve.us { stroke-width: 3 }
.curve.ref { stroke-dasharray: 5 4 }
.curve.limit { stroke-dasharray: 2 3 }
.dot { stroke: none }
.c0 { stroke: #0969da } .dot.c0, text.c0 { fill: #0969da }
.c1 { stroke: #bc4c00 } .dot.c1, text.c1 { fill: #bc4c00 }
.c2 { stroke: #8250df } .dot.c2, text.c2 { fill: #8250df }
.c3 { stroke: #bf3989 } .dot.c3, text.c3 { fill: #bf3989 }
.c4 { stroke: #1a7f37 } .dot.c4, text.c4 { fill: #1a7f37 }
.c5 { stroke: #9a6700 } .dot.c5, text.c5 { fill: #9a6700 }
.c6 { stroke: #59636e } .dot.c6, text.c6 { fill: #59636e }
text.c0, text.c1, text.c2, text.c3, text.c4, text.c5, text.c6 { stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.note { fill: #9198a1 }
.page { fill: #0d1117 }
.value { stroke: #0d1117 }
.grid { stroke: #2a313c }
.axis { stroke: #656c76 }
.bar { fill: #656c76 }
.bar.us { fill: #4493f8 }
.bar.ref { fill: #3d444d }
.spread { stroke: #f0f6fc }
.c0 { stroke: #4493f8 } .dot.c0, text.c0 { fill: #4493f8 }
.c1 { stroke: #f0883e } .dot.c1, text.c1 { fill: #f0883e }
.c2 { stroke: #ab7df8 } .dot.c2, text.c2 { fill: #ab7df8 }
.c3 { stroke: #f778ba } .dot.c3, text.c3 { fill: #f778ba }
.c4 { stroke: #3fb950 } .dot.c4, text.c4 { fill: #3fb950 }
.c5 { stroke: #d29922 } .dot.c5, text.c5 { fill: #d29922 }
.c6 { stroke: #9198a1 } .dot.c6, text.c6 { fill: #9198a1 }
}
`

type anchor string

const (
	start  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// px writes a coordinate. One that is no number would make the file invalid, and
// is a mistake of the caller.
func px(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		panic(fmt.Sprintf("bench: coordinate %v in a plot", v))
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// text writes s with its middle at the height y.
func (d *svg) text(x, y float64, at anchor, class, s string) {
	fmt.Fprintf(&d.body, `<text x="%s" y="%s" dy="%s" text-anchor="%s" class="%s">%s</text>`+"\n",
		px(x), px(y), centred, at, class, escape(s))
}

func (d *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.body, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), class)
}

func (d *svg) rect(x, y, width, height float64, class string) {
	fmt.Fprintf(&d.body, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`+"\n", px(x), px(y), px(width), px(height), class)
}

func (d *svg) dot(x, y, radius float64, class string) {
	fmt.Fprintf(&d.body, `<circle cx="%s" cy="%s" r="%s" class="%s"/>`+"\n", px(x), px(y), px(radius), class)
}

func (d *svg) path(points []xy, class string) {
	var b strings.Builder
	for i, p := range points {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(px(p.x) + "," + px(p.y))
	}
	fmt.Fprintf(&d.body, `<polyline points="%s" class="%s"/>`+"\n", b.String(), class)
}

// xy is a point, of data or of a drawing.
type xy struct{ x, y float64 }

// file returns the SVG, whose title is for those who cannot see it.
func (d *svg) file(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]s %[2]s" width="%[1]s" height="%[2]s" role="img">
<title>%[3]s</title>
<style>%[4]s</style>
<rect width="%[1]s" height="%[2]s" rx="6" class="page"/>
%[5]s</svg>
`, px(d.width), px(d.height), escape(title), style, d.body.String())
}
