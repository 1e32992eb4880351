package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func newStore(t *testing.T, orders []order) *store {
	t.Helper()
	s, err := openStore(t.Context(), t.TempDir(), orders)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	return s
}

// fences returns those of an order's charges in the order they were booked.
func (s *store) fences(t *testing.T, id string) []int64 {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), `SELECT fence FROM charges WHERE order_id = ? ORDER BY rowid`, id)
	require.NoError(t, err)
	defer rows.Close()
	var fences []int64
	for rows.Next() {
		var fence int64
		require.NoError(t, rows.Scan(&fence))
		fences = append(fences, fence)
	}
	require.NoError(t, rows.Err())
	return fences
}

func TestOnlyANewerFenceMayCharge(t *testing.T) {
	o := eur("a", "Ann", 100)
	s := newStore(t, []order{o})
	for _, step := range []struct {
		fence int64
		want  error
	}{
		{10, nil},
		{9, errStale},
		{10, errStale}, // a repeated write, as after a lost reply
		{11, nil},
		{10, errStale},
		{1 << 62, nil}, // fences fit the database's integers
	} {
		require.ErrorIs(t, s.charge(t.Context(), o, "w1", step.fence), step.want, "fence %d", step.fence)
	}
	require.Equal(t, []int64{10, 11, 1 << 62}, s.fences(t, "a"))
	v, err := s.verdict(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, v.Refusals)
}

// Without this, an old holder could write between a newer one's look and write,
// and both would charge.
func TestLookShutsOutOlderHolders(t *testing.T) {
	o := eur("a", "Ann", 100)
	s := newStore(t, []order{o})
	isCharged, err := s.look(t.Context(), "a", 10)
	require.NoError(t, err)
	require.False(t, isCharged)

	require.ErrorIs(t, s.charge(t.Context(), o, "w1", 9), errStale)
	_, err = s.look(t.Context(), "a", 9)
	require.ErrorIs(t, err, errStale)

	_, err = s.look(t.Context(), "a", 10)
	require.NoError(t, err, "the holder may look twice")
	require.NoError(t, s.charge(t.Context(), o, "w2", 10))
	isCharged, err = s.look(t.Context(), "a", 11)
	require.NoError(t, err)
	require.True(t, isCharged)
}

func TestFencesOfDifferentOrdersAreApart(t *testing.T) {
	a, b := eur("a", "Ann", 100), eur("b", "Bob", 200)
	s := newStore(t, []order{a, b})
	require.NoError(t, s.charge(t.Context(), a, "w1", 10))
	require.NoError(t, s.charge(t.Context(), b, "w1", 5))
}

func TestConcurrentChargesAreBookedInFenceOrder(t *testing.T) {
	const writers = 64
	o := eur("a", "Ann", 100)
	s := newStore(t, []order{o})
	var team sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for _, n := range rand.Perm(writers) {
		team.Go(func() {
			err := s.charge(t.Context(), o, "w", int64(n+1))
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, errStale) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	team.Wait()
	fences := s.fences(t, "a")
	require.True(t, slices.IsSorted(fences), "%v", fences)
	require.Len(t, slices.Compact(slices.Clone(fences)), len(fences))
	require.Equal(t, int64(writers), fences[len(fences)-1], "the newest is never refused")
	require.Equal(t, writers, len(fences)+refused)
}

func TestCancelledChargeBooksNothing(t *testing.T) {
	o := eur("a", "Ann", 100)
	s := newStore(t, []order{o})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.charge(ctx, o, "w1", 10), context.Canceled)
	require.NoError(t, s.charge(t.Context(), o, "w1", 10), "and takes no fence either")
	require.Equal(t, []int64{10}, s.fences(t, "a"))
}

func TestUnfencedChargesPileUp(t *testing.T) {
	o := eur("a", "Ann", 100)
	s := newStore(t, []order{o})
	for want := 1; want <= 3; want++ {
		times, err := s.chargeUnfenced(t.Context(), o, "w1")
		require.NoError(t, err)
		require.Equal(t, want, times)
	}
}

func TestVerdictCountsWhatTheDatabaseHolds(t *testing.T) {
	a, b, c := eur("a", "Ann", 100), eur("b", "Bob", 200), order{"c", "Cho", money{300, "JPY"}}
	s := newStore(t, []order{a, b, c})
	check := func(want verdict, holds bool) {
		t.Helper()
		v, err := s.verdict(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, v)
		require.Equal(t, holds, v.holds())
	}
	totals := func(eur, jpy int64) []total {
		return []total{
			{money{300, "EUR"}, money{eur, "EUR"}},
			{money{300, "JPY"}, money{jpy, "JPY"}},
		}
	}
	check(verdict{Orders: 3, Never: 3, Totals: totals(0, 0)}, false)
	for i, o := range []order{a, b, c} {
		require.NoError(t, s.charge(t.Context(), o, "w1", int64(i+1)))
	}
	check(verdict{Orders: 3, Once: 3, Charges: 3, Totals: totals(300, 300)}, true)
	_, err := s.chargeUnfenced(t.Context(), c, "w2")
	require.NoError(t, err)
	check(verdict{Orders: 3, Once: 2, More: 1, Charges: 4, Totals: totals(300, 600)}, false)
}

func TestNoOrdersAreNoSuccess(t *testing.T) {
	v, err := newStore(t, nil).verdict(t.Context())
	require.NoError(t, err)
	require.False(t, v.holds())
}
