package fencing

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// ledger is a database with one order that is not charged.
func ledger(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "ledger"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	for _, statement := range []string{
		`CREATE TABLE orders (id TEXT PRIMARY KEY, fence BIGINT NOT NULL DEFAULT 0)`,
		`CREATE TABLE charges (order_id TEXT NOT NULL, cents BIGINT NOT NULL)`,
		`INSERT INTO orders (id) VALUES ('42')`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return db
}

func charges(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM charges`).Scan(&n))
	return n
}

func TestALateHolderIsRefused(t *testing.T) {
	db := ledger(t)
	require.NoError(t, chargeOrder(t.Context(), db, "42", 100, 2))
	assert.ErrorIs(t, chargeOrder(t.Context(), db, "42", 100, 1), errStaleFence)
	assert.Equal(t, 1, charges(t, db))
}

// A fence orders writes. That a job which runs twice books once is due to the look
// at what is booked.
func TestAHolderThatComesAfterALateOneDoesNotChargeAgain(t *testing.T) {
	db := ledger(t)
	require.NoError(t, chargeOrder(t.Context(), db, "42", 100, 1), "late, but before the newer one")
	assert.ErrorIs(t, chargeOrder(t.Context(), db, "42", 100, 2), errCharged)
	assert.Equal(t, 1, charges(t, db))
}

func TestAWriteThatIsRepeatedIsRefused(t *testing.T) {
	db := ledger(t)
	require.NoError(t, chargeOrder(t.Context(), db, "42", 100, 1))
	assert.ErrorIs(t, chargeOrder(t.Context(), db, "42", 100, 1), errStaleFence)
	assert.Equal(t, 1, charges(t, db))
}

func TestAnOrderThatIsMissingIsRefused(t *testing.T) {
	db := ledger(t)
	assert.ErrorIs(t, chargeOrder(t.Context(), db, "43", 100, 1), errStaleFence)
	assert.Zero(t, charges(t, db))
}
