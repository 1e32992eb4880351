package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// report is what the program prints.
type report struct {
	campaign campaign
	results  *results
	redis    string // version
	args     []string
	out      string // folder of the plots
}

// write prints the report. What is first in a column is computed, like everything
// else in it.
func (r report) write(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	r.writeOverview(&b)
	for _, s := range r.campaign.scenarios {
		r.writeScenario(&b, s)
	}
	r.writeTargets(&b)
	r.writeFaults(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r report) writeHead(b *strings.Builder) {
	command := strings.Join(append([]string{"go -C bench run ."}, r.args...), " ")
	fmt.Fprintf(b, "# redislock beside others\n\n")
	fmt.Fprintf(b, "`%s` on %s, %s/%s, %s, %s, redis-server %s; it took %v.\n\n", command,
		time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, processors(), runtime.Version(), r.redis,
		r.results.took.Round(time.Second))
	fmt.Fprintf(b, "Values are medians over the rounds, in which the adapters take turns, beginning with another one each time. Ratios (×) are formed within each round; "+
		"their median stands here. "+
		"Commands are those that clients send, without those that scripts call. "+
		"Server time is that of commandstats, server CPU that of the whole process, client CPU that of all client processes. "+
		"Fairness is Jain's index of sections: 1 is all the same. The best lock of each column is in bold.\n\n")
	fmt.Fprintf(b, "| adapter | version | set up as |\n| --- | --- | --- |\n")
	for _, a := range r.campaign.adapters {
		fmt.Fprintf(b, "| %s | %s | %s |\n", a.title, version(a), a.config)
	}
	fmt.Fprintln(b)
}

func processors() string {
	model := ""
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(info), "model name")
		line, _, _ := strings.Cut(rest, "\n")
		model = strings.TrimSpace(strings.TrimLeft(line, " \t:"))
	}
	return strings.TrimSpace(fmt.Sprintf("%d cores %s", runtime.NumCPU(), model))
}

// version is that of the adapter's module, as it was built in.
func version(a adapter) string {
	if a.id == ours {
		return "this checkout"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == a.module {
			return m.Version
		}
	}
	return ""
}

func (r report) writeScenario(b *strings.Builder, s scenario) {
	fmt.Fprintf(b, "## %s\n\n%s", s.title, s.about)
	if len(s.series) > 0 {
		r.writeGrowth(b, s)
		return
	}
	if s.group != waiting && s.group != holding {
		fmt.Fprintf(b, " %s of %v.", plural(s.rounds, "round"), s.window)
	}
	fmt.Fprintf(b, "\n\n")
	r.writeTable(b, s)
	r.writeStandstills(b, s)
	r.writeComparison(b, s)
	r.writeFigures(b, r.campaign.figures(s))
}

func (r report) writeFigures(b *strings.Builder, figures []figure) {
	if r.out == "" || len(figures) == 0 {
		return
	}
	for _, f := range figures {
		fmt.Fprintf(b, "![%s](%s)\n", f.title, filepath.ToSlash(r.path(f)))
	}
	fmt.Fprintln(b)
}

// writeOverview sets loopback and network side by side.
func (r report) writeOverview(b *strings.Builder) {
	var shown []scenario
	heads, rules := []string{"adapter"}, []string{"---"}
	for _, s := range r.campaign.scenarios {
		twin, ok := r.campaign.scenario(s.twin)
		if !ok {
			continue
		}
		for _, s := range []scenario{twin, s} {
			shown = append(shown, s)
			heads, rules = append(heads, s.title+": "+column{metric: s.chart}.title(s)), append(rules, "---:")
		}
	}
	if len(shown) == 0 {
		return
	}
	fmt.Fprintf(b, "## Loopback and network\n\nThe network adds %s to each round trip.\n\n", lan.span())
	writeRow(b, heads)
	writeRow(b, rules)
	for _, a := range r.campaign.adapters {
		if row, ok := r.overviewRow(a, shown); ok {
			writeRow(b, row)
		}
	}
	fmt.Fprintln(b)
}

// overviewRow is not ok for an adapter that takes part in none of the scenarios.
func (r report) overviewRow(a adapter, shown []scenario) (row []string, ok bool) {
	row = []string{a.title}
	for _, s := range shown {
		row = append(row, r.cell(s, a, column{metric: s.chart}))
		ok = ok || a.groups&s.group != 0
	}
	return row, ok
}

// writeGrowth writes a table for each series: of each adapter, a row for each
// point.
func (r report) writeGrowth(b *strings.Builder, s scenario) {
	fmt.Fprintf(b, " %s of %v.\n\n", plural(s.rounds, "round"), s.window)
	figures := r.campaign.figures(s)
	for i, of := range s.series {
		fmt.Fprintf(b, "### %s\n\n%s\n\n", of.title, of.about)
		r.writeSeries(b, of)
		r.writeFigures(b, figures[i:i+1])
	}
}

func (r report) writeSeries(b *strings.Builder, of series) {
	first := of.points[0]
	heads, rules := []string{"adapter", of.many}, []string{"---", "---:"}
	for _, m := range growthColumns() {
		heads, rules = append(heads, column{metric: m}.title(first.scenario)), append(rules, "---:")
		if m != commandsPerOp {
			heads, rules = append(heads, growthHead(m, first)), append(rules, "---:")
		}
	}
	writeRow(b, heads)
	writeRow(b, rules)
	for _, a := range r.campaign.taking(first.scenario) {
		for _, p := range of.points {
			writeRow(b, r.growthRow(a, of, p))
		}
	}
	fmt.Fprintln(b)
}

// growthHead is the title of what is beside the value: of time how often that of
// the first point, of memory that of each.
func growthHead(m metric, first point) string {
	if m.isBytes() {
		return "for each"
	}
	return fmt.Sprintf("× that of %d", first.many)
}

func (r report) growthRow(a adapter, of series, p point) []string {
	row := []string{a.title, tickCount(float64(p.many))}
	for _, m := range growthColumns() {
		v := r.results.median(p.scenario.id, a.id, m)
		row = append(row, m.show(v))
		switch {
		case m.isBytes():
			row = append(row, m.show(v/float64(p.many)))
		case m.isTime():
			first := r.results.rounds(of.points[0].scenario.id, a.id, m)
			row = append(row, showRatio(median(ratios(r.results.rounds(p.scenario.id, a.id, m), first))))
		}
	}
	return row
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (r report) writeTable(b *strings.Builder, s scenario) {
	heads, rules := []string{"adapter"}, []string{"---"}
	for _, c := range s.columns {
		heads, rules = append(heads, c.title(s)), append(rules, "---:")
	}
	writeRow(b, heads)
	writeRow(b, rules)
	for _, a := range r.campaign.taking(s) {
		row := []string{a.title}
		for _, c := range s.columns {
			row = append(row, r.cell(s, a, c))
		}
		writeRow(b, row)
	}
	fmt.Fprintln(b)
}

func writeRow(b *strings.Builder, cells []string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// title of a ratio goes without the metric if that is the column before.
func (c column) title(s scenario) string {
	if c.against != "" {
		return map[string]string{pair: "× pair", queue: "× queue"}[c.against]
	}
	title, isRate := strings.CutPrefix(string(c.metric), "ops/")
	if isRate {
		return s.op + "s/" + title
	}
	if title, perOp := strings.CutSuffix(string(c.metric), "/op"); perOp {
		return title + "/" + s.op
	}
	return string(c.metric)
}

func (r report) cell(s scenario, a adapter, c column) string {
	if c.against != "" {
		return showRatio(r.results.ratio(s.id, a.id, c.against, c.metric))
	}
	v := r.results.median(s.id, a.id, c.metric)
	shown := c.metric.show(v)
	if a.isLock() && !math.IsNaN(v) && shown == c.metric.show(r.best(s, c.metric)) {
		return "**" + shown + "**"
	}
	return shown
}

// isLock is false for the references.
func (a adapter) isLock() bool { return !a.noLock && !a.unsafe }

// best is the best value of a lock.
func (r report) best(s scenario, m metric) float64 {
	best := math.NaN()
	for _, a := range r.campaign.taking(s) {
		v := r.results.median(s.id, a.id, m)
		if a.isLock() && !math.IsNaN(v) && (math.IsNaN(best) || better(m, v, best)) {
			best = v
		}
	}
	return best
}

// writeStandstills explains an ∞ in the table: somebody waits for a wake-up that
// does not come.
func (r report) writeStandstills(b *strings.Builder, s scenario) {
	if s.op == "" {
		return
	}
	for _, a := range r.campaign.taking(s) {
		still := 0
		for _, v := range r.results.rounds(s.id, a.id, opsPerSecond) {
			if v == 0 {
				still++
			}
		}
		if still > 0 {
			fmt.Fprintf(b, "%s stood still in %d of %s: not a single %s.\n\n", a.title, still, plural(s.rounds, "round"), s.op)
		}
	}
}

// noise is what two medians may differ by without one being called ahead.
const noise = 1.02

// writeComparison says where another lock is ahead of this one.
func (r report) writeComparison(b *strings.Builder, s scenario) {
	taking := r.campaign.taking(s)
	if !slices.ContainsFunc(taking, func(a adapter) bool { return a.id == ours }) {
		return
	}
	ahead := false
	for _, a := range taking {
		if found := r.ahead(s, a); a.isLock() && a.id != ours && len(found) > 0 {
			fmt.Fprintf(b, "**%s is ahead** of redislock in %s.\n\n", a.title, strings.Join(found, ", "))
			ahead = true
		}
	}
	if !ahead {
		fmt.Fprintf(b, "No other lock is ahead of redislock in any column.\n\n")
	}
}

// ahead lists the columns in which a does better than redislock.
func (r report) ahead(s scenario, a adapter) (found []string) {
	for _, c := range s.columns {
		if c.against != "" {
			continue
		}
		our, their := r.results.median(s.id, ours, c.metric), r.results.median(s.id, a.id, c.metric)
		if isAhead(c.metric, their, our) {
			found = append(found, fmt.Sprintf("%s (%s, redislock %s)", c.title(s), c.metric.show(their), c.metric.show(our)))
		}
	}
	return found
}

func isAhead(m metric, their, our float64) bool {
	if m.lessIsBetter() {
		return their*noise < our
	}
	return their > our*noise
}

func (r report) writeTargets(b *strings.Builder) {
	fmt.Fprintf(b, "## Targets\n\n| target | bound | measured | holds |\n| --- | ---: | ---: | --- |\n")
	for _, t := range r.targets() {
		writeRow(b, []string{t.what, t.limit(), t.show(t.value), t.verdict()})
	}
	fmt.Fprintln(b)
}

func (r report) writeFaults(b *strings.Builder) {
	fmt.Fprintf(b, "## Mutual exclusion\n\n%.0f sections were checked.\n\n", r.results.checked)
	writeList(b, "VIOLATED: two held a lock at once", r.results.violations)
	writeList(b, "Failed, and not part of the medians", r.results.failures)
	if len(r.results.violations) == 0 {
		fmt.Fprintf(b, "Never were two inside at once.\n")
	}
}

func writeList(b *strings.Builder, title string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n\n", title)
	for _, item := range items {
		fmt.Fprintf(b, "- %s\n", item)
	}
	fmt.Fprintln(b)
}
