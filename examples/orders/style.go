package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
)

// tone is an SGR parameter: the colour that says how to take a text.
type tone string

const (
	plain tone = ""
	faint tone = "2"
	good  tone = "32"
	warn  tone = "33"
	bad   tone = "1;31"
	proud tone = "1;32"
	head  tone = "1"
)

// style knows whether the reader is a terminal. Elsewhere, in a file, a pipe or
// a log, there are no colours and only ASCII in the drawings.
type style struct{ terminal bool }

// styleFor follows no-color.org.
func styleFor(f *os.File) style {
	wanted := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return style{terminal: wanted && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))}
}

func (s style) paint(t tone, text string) string {
	if !s.terminal || t == plain || text == "" {
		return text
	}
	const end = "\x1b[0m"
	begin := "\x1b[" + string(t) + "m"
	return begin + strings.ReplaceAll(text, end, end+begin) + end // text may be painted in parts
}

// fence plays down the digits that all fences of one run share, since it is the
// last ones that a reader compares.
func (s style) fence(fence int64) string {
	const telling = 8
	digits := strconv.FormatInt(fence, 10)
	cut := max(0, len(digits)-telling)
	return s.paint(faint, digits[:cut]) + s.paint(head, digits[cut:])
}

// pick returns the drawing for a terminal, or its ASCII stand-in.
func (s style) pick(glyph, ascii rune) rune {
	if s.terminal {
		return glyph
	}
	return ascii
}

func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
}

func ordinal(n int) string {
	switch n {
	case 2:
		return "second"
	case 3:
		return "third"
	}
	return strconv.Itoa(n) + "th"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
