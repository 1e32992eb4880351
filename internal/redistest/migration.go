package redistest

import (
	"fmt"
	"testing"
)

// migrateTimeout bounds the pauses within one transfer of keys.
const migrateTimeout = adminTimeout / 2

// Migration is a slot on its way from one primary to another, with keys on both
// sides: those that are still at From are served there, for all others clients
// are sent to To with ASK, and commands on keys of both kinds get TRYAGAIN.
type Migration struct {
	From, To *Server
	cluster  *Cluster
	key      string // one of the slot
	slot     int
}

// MoveSlot moves the slot of key, with all its keys, from the primary that owns
// it to another while both serve clients, and returns once the whole cluster
// knows.
func (c *Cluster) MoveSlot(t testing.TB, key string, to *Server) {
	t.Helper()
	c.BeginMigration(t, key, to).Finish(t)
}

// BeginMigration begins to move the slot of key to another primary. No key has
// moved yet when it returns.
func (c *Cluster) BeginMigration(t testing.TB, key string, to *Server) *Migration {
	t.Helper()
	m := &Migration{From: c.Primary(t, key), To: to, cluster: c, key: key, slot: c.Slot(t, key)}
	to.Do(t, "cluster", "setslot", m.slot, "importing", m.From.id(t))
	m.From.Do(t, "cluster", "setslot", m.slot, "migrating", to.id(t))
	return m
}

// MoveKeys moves these keys of the slot; ones that do not exist are ignored.
func (m *Migration) MoveKeys(t testing.TB, keys ...string) {
	t.Helper()
	if len(keys) == 0 {
		return
	}
	args := []any{"migrate", "127.0.0.1", m.To.port, "", 0, migrateTimeout.Milliseconds()}
	if m.To.password != "" {
		args = append(args, "auth", m.To.password)
	}
	args = append(args, "keys")
	for _, key := range keys {
		args = append(args, key)
	}
	m.From.Do(t, args...)
}

// Finish moves all keys that are left, and then the slot. It returns once the
// whole cluster knows.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	for keys := m.left(t); len(keys) > 0; keys = m.left(t) {
		m.MoveKeys(t, keys...)
	}
	// The new owner first: were the old one the first to know and the new one
	// lost, nobody would own the slot.
	m.settle(t, m.To)
	for _, s := range running(m.cluster.nodes) {
		if s != m.To && s.isPrimary() == nil {
			m.settle(t, s)
		}
	}
	m.cluster.waitForOwner(t, m.key, readyTimeout, func(owner *Server) error {
		if owner != m.To {
			return fmt.Errorf("%s is still the primary", owner.Addr())
		}
		return nil
	})
}

func (m *Migration) settle(t testing.TB, s *Server) {
	t.Helper()
	s.Do(t, "cluster", "setslot", m.slot, "node", m.To.id(t))
}

// left returns keys of the slot that have not moved, some of them if many.
func (m *Migration) left(t testing.TB) (keys []string) {
	t.Helper()
	for _, key := range m.From.Do(t, "cluster", "getkeysinslot", m.slot, 100).([]any) {
		keys = append(keys, key.(string))
	}
	return keys
}
