package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// printHead says what is about to run, and which rows of the file will not.
func (d *demo) printHead(orders int, malformed []badRow) {
	d.printf(head, "%s, %s, lease %s, %s\n", count(orders, "order", "orders"), count(d.workers, "worker", "workers"),
		d.ttl, d.where())
	if d.unsafe {
		d.printf(bad, "UNSAFE: no lock and no fence\n")
	}
	if len(malformed) > 0 {
		d.printf(plain, "%s: %s skipped\n", fileName(d.ordersFile), count(len(malformed), "malformed row", "malformed rows"))
	}
	for _, row := range malformed {
		d.printf(warn, "  line %4d  %s\n", row.Line, row.Reason)
	}
	d.printf(plain, "\nThe story of order %s, whose first worker is paused past its lease:\n", d.paused)
}

func (d *demo) where() string {
	switch {
	case d.unsafe:
		return "SQLite only"
	case d.redisAddr != "":
		return "Redis " + d.redisAddr + ", SQLite"
	}
	return "embedded Redis, SQLite"
}

// printTail draws what happened and gives the verdict.
func (d *demo) printTail(v verdict, interrupted bool) {
	d.printf(plain, "\n")
	turns := d.timeline.all()
	d.chart().draw(d.out, d.lanes(turns), turns)
	d.printContended()
	deliveries, redelivered := d.queue.counts()
	d.printf(plain, "\n%s of %s: some sent twice by the producer, %d delivered again by the queue\n",
		count(deliveries, "delivery", "deliveries"), count(v.Orders, "order", "orders"), redelivered)
	if lost := int(d.losses.Load()); lost > 0 {
		d.printf(warn, "%s by workers too slow for a lease of %s; the orders were delivered again\n",
			count(lost, "more lock was lost", "more locks were lost"), d.ttl)
	}
	d.printVerdict(v)
	d.printJudgement(v, interrupted)
}

// lanes leaves out of a large team the workers that had nothing to do with the
// paused order.
func (d *demo) lanes(turns []turn) []string {
	const most = 8
	names := d.names()
	if len(names) <= most {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(turns, func(t turn) bool { return t.worker == name && t.order == d.paused })
	})
}

func (d *demo) chart() chart {
	return chart{style: d.style, order: d.paused, start: d.timeline.start, stop: time.Now(), width: 72}
}

// printContended shows a few more orders that two workers wanted at once.
func (d *demo) printContended() {
	const most = 3
	contended := d.contended()
	if len(contended) == 0 {
		return
	}
	d.printf(plain, "\n%s wanted by two workers at once", count(len(contended), "more order was", "more orders were"))
	if len(contended) > most {
		contended = contended[:most]
		d.printf(plain, "; the first %d", most)
	}
	d.printf(plain, ":\n")
	table := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	for _, turns := range contended {
		for _, t := range turns {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", t.order, t.worker, d.span(t), d.ending(t))
		}
	}
	table.Flush()
}

// contended groups the turns at orders that somebody began with before another
// had ended, the paused one aside.
func (d *demo) contended() [][]turn {
	byOrder := map[string][]turn{}
	for _, t := range d.timeline.all() {
		byOrder[t.order] = append(byOrder[t.order], t)
	}
	delete(byOrder, d.paused)
	var groups [][]turn
	for _, turns := range byOrder {
		slices.SortFunc(turns, func(a, b turn) int { return a.began.Compare(b.began) })
		if overlap(turns) {
			groups = append(groups, turns)
		}
	}
	slices.SortFunc(groups, func(a, b []turn) int {
		return cmp.Or(a[0].began.Compare(b[0].began), strings.Compare(a[0].order, b[0].order))
	})
	return groups
}

func overlap(turns []turn) bool {
	for i := 1; i < len(turns); i++ {
		if turns[i].asked.Before(turns[i-1].ended) {
			return true
		}
	}
	return false
}

func (d *demo) span(t turn) string {
	if t.began.IsZero() {
		return "never had the lock\t"
	}
	since := func(at time.Time) float64 { return at.Sub(d.timeline.start).Seconds() }
	span := fmt.Sprintf("%.3f-%.3f s", since(t.began), since(t.ended))
	if t.fence == 0 {
		return span
	}
	return fmt.Sprintf("%s  waited %s\tfence %s", span, ms(t.began.Sub(t.asked)), d.style.fence(t.fence))
}

func (d *demo) ending(t turn) string {
	switch t.outcome {
	case charged:
		return d.style.paint(good, "charged")
	case chargedAgain:
		return d.style.paint(bad, "CHARGED AGAIN")
	case foundCharged:
		return d.style.paint(faint, "found it charged")
	case refused:
		return d.style.paint(bad, "refused")
	}
	return "did not finish"
}

func (d *demo) printVerdict(v verdict) {
	d.printf(head, "\nFrom the database\n")
	d.printCount("charged exactly once", v.Once, plain)
	d.printCount("charged more than once", v.More, bad)
	d.printCount("never charged", v.Never, bad)
	d.printCount("stale writes refused", v.Refusals, warn)
	for _, t := range v.Totals {
		tone := plain
		if t.Ordered != t.Charged {
			tone = bad
		}
		d.printf(tone, "  %16s ordered  %16s charged\n", t.Ordered, t.Charged)
	}
}

func (d *demo) printCount(what string, n int, tone tone) {
	if n == 0 {
		tone = plain
	}
	d.printf(tone, "  %-24s%6d\n", what, n)
}

func (d *demo) printJudgement(v verdict, interrupted bool) {
	switch {
	case v.holds():
		d.printf(proud, "OK: every order was charged exactly once (%d of %d).\n", v.Once, v.Orders)
	case interrupted:
		d.printf(warn, "INTERRUPTED: %d of %d orders charged, %d of them more than once; held locks are released.\n",
			v.Once+v.More, v.Orders, v.More)
	case v.More > 0:
		d.printf(bad, "DOUBLE CHARGES: %s more than once, %s too many.\n",
			count(v.More, "order was charged", "orders were charged"), count(v.Charges-v.Once-v.More, "charge", "charges"))
	default:
		d.printf(bad, "INCOMPLETE: %d of %d orders were charged.\n", v.Once, v.Orders)
	}
}

func (d *demo) printf(tone tone, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	line := strings.Trim(text, "\n")
	before, after, _ := strings.Cut(text, line)
	fmt.Fprint(d.out, before, d.style.paint(tone, line), after)
}
