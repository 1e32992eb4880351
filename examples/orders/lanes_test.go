package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at counts seconds from an arbitrary start.
func at(seconds float64) time.Time {
	return time.Unix(0, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func drawn(style style, turns ...turn) string {
	var b strings.Builder
	c := chart{style: style, order: "o", start: at(0), stop: at(10), width: 20}
	c.draw(&b, []string{"w1", "w2"}, turns)
	return b.String()
}

func TestChartOfAPausedWorker(t *testing.T) {
	got := drawn(style{},
		turn{worker: "w1", order: "o", fence: 1, asked: at(1), began: at(1), lost: at(4), ended: at(8), outcome: refused},
		turn{worker: "w2", order: "x", fence: 1, asked: at(0), began: at(0), ended: at(1.9), outcome: charged},
		turn{worker: "w2", order: "o", fence: 2, asked: at(3), began: at(4.5), ended: at(6), outcome: charged},
		turn{worker: "w2", order: "o", asked: at(9), ended: at(9.5)},
	)
	require.Equal(t, `  w1    ######~~~~~~~~X
  w2  ....  ---###$     --
      |0.00|2.50|5.00|7.50
      . other orders   - waits   # holds the lock   ~ lease over   $ charges   X refused
`, strings.ReplaceAll(got, " s", ""))
}

func TestChartWithoutLock(t *testing.T) {
	got := drawn(style{},
		turn{worker: "w1", order: "o", asked: at(1), began: at(1), ended: at(8), outcome: chargedAgain},
		turn{worker: "w2", order: "o", asked: at(3), began: at(3), ended: at(4), outcome: charged},
	)
	require.Contains(t, got, "  w1    ##############X\n  w2        ##$\n")
	require.Contains(t, got, "# works without a lock   $ charges   X charges again")
}

func TestColoursAreOnlyForATerminal(t *testing.T) {
	one := turn{worker: "w1", order: "o", fence: 1, asked: at(0), began: at(0), ended: at(9.9), outcome: charged}
	require.NotContains(t, drawn(style{}, one), "\x1b")
	require.Contains(t, drawn(style{terminal: true}, one), "\x1b[32m███████████████████\x1b[0m\x1b[1;32m●\x1b[0m\n")
	require.Equal(t, "1795973374562091", style{}.fence(1795973374562091))
	require.Equal(t, "\x1b[2m17959733\x1b[0m\x1b[1m74562091\x1b[0m", style{terminal: true}.fence(1795973374562091))
}

func TestColourGoesOnAfterAPaintedPart(t *testing.T) {
	s := style{terminal: true}
	require.Equal(t, "\x1b[32mfence \x1b[1m7\x1b[0m\x1b[32m held\x1b[0m", s.paint(good, "fence "+s.paint(head, "7")+" held"))
}

func TestLargeTeamShowsOnlyThePausedOrdersLanes(t *testing.T) {
	r := newRig(t, config{workers: 64, ttl: testTTL, seed: 1, unsafe: true}, someOrders(10))
	turns := []turn{{worker: "w3", order: r.paused}, {worker: "w5", order: "O-000"}, {worker: "w40", order: r.paused}}
	require.Equal(t, []string{"w3", "w40"}, r.lanes(turns))
	r.workers = 5
	require.Equal(t, []string{"w1", "w2", "w3", "w4", "w5"}, r.lanes(turns))
}

func TestMomentsOutsideTheChartAreDrawnAtItsEdge(t *testing.T) {
	got := drawn(style{}, turn{worker: "w1", order: "o", fence: 1, asked: at(-5), began: at(-1), ended: at(99)})
	require.Contains(t, got, "  w1  ####################\n")
}
