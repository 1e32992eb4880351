package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// cell is one character of a lane. Where several fall together the later in
// this list shows.
type cell int

const (
	idle cell = iota
	elsewhere
	waits
	works
	holds
	stale
	charges
	overcharges
	refuses
)

// ink is how a cell is drawn.
type ink struct {
	glyph, ascii rune
	tone         tone
	meaning      string
}

var inks = map[cell]ink{
	idle:        {' ', ' ', plain, ""},
	elsewhere:   {'·', '.', faint, "other orders"},
	waits:       {'░', '-', warn, "waits"},
	works:       {'█', '#', warn, "works without a lock"},
	holds:       {'█', '#', good, "holds the lock"},
	stale:       {'╌', '~', bad, "lease over"},
	charges:     {'●', '$', proud, "charges"},
	overcharges: {'✗', 'X', bad, "charges again"},
	refuses:     {'✗', 'X', bad, "refused"},
}

// chart draws one lane per worker and shows what each had to do with one order.
type chart struct {
	style       style
	order       string
	start, stop time.Time
	width       int
}

func (c chart) draw(out io.Writer, workers []string, turns []turn) {
	used := map[cell]bool{}
	for _, name := range workers {
		lane := c.lane(name, turns)
		fmt.Fprintf(out, "  %-4s%s\n", name, c.paint(lane))
		for _, cell := range lane {
			used[cell] = true
		}
	}
	fmt.Fprintf(out, "      %s\n", c.style.paint(faint, c.axis()))
	fmt.Fprintf(out, "      %s\n", c.legend(used))
}

func (c chart) lane(worker string, turns []turn) []cell {
	lane := make([]cell, c.width)
	for _, t := range turns {
		switch {
		case t.worker != worker:
		case t.order != c.order:
			c.fill(lane, elsewhere, t.asked, t.ended)
		default:
			c.fillTurn(lane, t)
		}
	}
	return lane
}

func (c chart) fillTurn(lane []cell, t turn) {
	if t.began.IsZero() {
		c.fill(lane, waits, t.asked, t.ended)
		return
	}
	c.fill(lane, waits, t.asked, t.began)
	c.fill(lane, t.manner(), t.began, t.ended)
	if !t.lost.IsZero() {
		c.fill(lane, stale, t.lost, t.ended)
	}
	if mark, marked := marks[t.outcome]; marked {
		c.fill(lane, mark, t.ended, t.ended)
	}
}

var marks = map[outcome]cell{charged: charges, chargedAgain: overcharges, refused: refuses}

func (t turn) manner() cell {
	if t.fence == 0 {
		return works
	}
	return holds
}

// fill marks at least one cell, however short the time.
func (c chart) fill(lane []cell, with cell, from, to time.Time) {
	for i := c.column(from); i <= c.column(to); i++ {
		lane[i] = max(lane[i], with)
	}
}

func (c chart) column(at time.Time) int {
	share := float64(at.Sub(c.start)) / float64(max(1, c.stop.Sub(c.start)))
	return min(c.width-1, max(0, int(share*float64(c.width))))
}

// paint colours whole runs rather than single cells.
func (c chart) paint(lane []cell) string {
	var b strings.Builder
	for len(lane) > 0 {
		first := lane[0]
		run := slices.IndexFunc(lane, func(next cell) bool { return next != first })
		if run < 0 {
			run = len(lane)
		}
		ink := inks[first]
		b.WriteString(c.style.paint(ink.tone, strings.Repeat(string(c.style.pick(ink.glyph, ink.ascii)), run)))
		lane = lane[run:]
	}
	return strings.TrimRight(b.String(), " ")
}

// axis writes a time every quarter of the width.
func (c chart) axis() string {
	const quarters = 4
	var b strings.Builder
	for i := range quarters {
		at := c.stop.Sub(c.start).Seconds() * float64(i) / quarters
		fmt.Fprintf(&b, "%-*s", c.width/quarters, fmt.Sprintf("|%.2f s", at))
	}
	return strings.TrimRight(b.String(), " ")
}

func (c chart) legend(used map[cell]bool) string {
	var entries []string
	for cell := elsewhere; cell <= refuses; cell++ {
		if ink := inks[cell]; used[cell] {
			glyph := c.style.paint(ink.tone, string(c.style.pick(ink.glyph, ink.ascii)))
			entries = append(entries, glyph+" "+ink.meaning)
		}
	}
	return strings.Join(entries, "   ")
}
