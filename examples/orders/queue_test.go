package main

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func someOrders(n int) []order {
	orders := make([]order, n)
	for i := range orders {
		orders[i] = eur(fmt.Sprintf("O-%03d", i), "Somebody", int64(100+i))
	}
	return orders
}

// mustReceive fails the test where nothing is ready.
func mustReceive(t *testing.T, q *queue) delivery {
	t.Helper()
	d, open := q.receive(t.Context())
	require.True(t, open)
	return d
}

func TestUnacknowledgedMessageComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(someOrders(1), time.Second)
		first := mustReceive(t, q)
		start := time.Now()
		second := mustReceive(t, q)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, first.order, second.order)
		require.Equal(t, 2, second.attempt)
		q.ack(second)
		_, open := q.receive(t.Context())
		require.False(t, open)
	})
}

func TestReleasedMessageComesBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(someOrders(1), time.Hour)
		start := time.Now()
		q.release(mustReceive(t, q))
		q.ack(mustReceive(t, q))
		require.Zero(t, time.Since(start))
	})
}

func TestLateAckOfAnOldDeliveryEndsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(someOrders(1), time.Second)
		old := mustReceive(t, q)
		time.Sleep(time.Second) // it stands in line again
		synctest.Wait()
		q.ack(old)
		q.ack(old)
		_, open := q.receive(t.Context())
		require.False(t, open)
	})
}

func TestLateReleaseOfAnOldDeliveryDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(someOrders(1), time.Second)
		old := mustReceive(t, q)
		newer := mustReceive(t, q)
		q.release(old)
		q.ack(newer)
		q.release(old)
		q.release(newer)
		deliveries, redelivered := q.counts()
		require.Equal(t, 2, deliveries)
		require.Equal(t, 1, redelivered)
	})
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	q := newQueue(someOrders(1), time.Hour)
	q.release(mustReceive(t, q))
	held := mustReceive(t, q)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, open := q.receive(ctx)
	require.False(t, open)
	q.ack(held)
}

func TestProducerSendsSomeOrdersTwiceAndAllAtLeastOnce(t *testing.T) {
	orders := someOrders(1000)
	const except = "O-007"
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		times := map[string]int{}
		for _, o := range sentTwice(orders, except, seed) {
			times[o.ID]++
		}
		require.Len(t, times, len(orders))
		require.Equal(t, 1, times[except])
		twice := 0
		for _, n := range times {
			require.LessOrEqual(t, n, 2)
			twice += n - 1
		}
		require.InDelta(t, 100, twice, 40)
		require.Equal(t, sentTwice(orders, except, seed), sentTwice(orders, except, seed))
	}
}
