package redislock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// A ticket that was made in time may be for an inbox that is not the one of the
// moment.
func TestTicketIsForTheInboxOfTheMoment(t *testing.T) {
	lk := New(clusterClient(t, neverDial(t)))
	a, err := lk.newAcquisition(t.Context(), opAcquire, "a", time.Hour, acquireOptions{metadata: "m"})
	require.NoError(t, err)
	want := a.ticket("other")
	a.prepareTicket(line.None)
	require.Equal(t, want, a.ticket("other"))
}

// Longer members make Redis turn a small sorted set into a large one.
func TestTicketsOfUsualNamesAreShort(t *testing.T) {
	lk := New(clusterClient(t, neverDial(t)))
	a, err := lk.newAcquisition(t.Context(), opAcquire, "order:42", 30*time.Second, acquireOptions{})
	require.NoError(t, err)
	inboxes := line.Inboxes{Config: line.Config{Home: func(string) (string, wire.Subscriber) { return "", &redis.Client{} }}}
	require.LessOrEqual(t, len(a.ticket(inboxes.Of("").ID)), 64)
}
