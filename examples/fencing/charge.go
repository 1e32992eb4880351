// Package fencing has the recipes of docs/fencing.md as code. Its tests execute
// them in SQLite.
package fencing

import (
	"context"
	"database/sql"
	"errors"
)

var (
	errStaleFence = errors.New("stale fence: a newer holder has been here")
	errCharged    = errors.New("the order was charged before")
)

// chargeOrder books the charge of an order, unless a newer holder of the order's
// lock has been here or the order is charged already.
func chargeOrder(ctx context.Context, db *sql.DB, order string, cents, fence int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit

	result, err := tx.ExecContext(ctx,
		`UPDATE orders SET fence = ? WHERE id = ? AND fence < ?`, fence, order, fence)
	if err != nil {
		return err
	}
	switch rows, err := result.RowsAffected(); {
	case err != nil:
		return err
	case rows == 0:
		return errStaleFence // somebody with a newer fence has been here, or there is no such order
	}
	var charges int
	err = tx.QueryRowContext(ctx,
		`SELECT count(*) FROM charges WHERE order_id = ?`, order).Scan(&charges)
	switch {
	case err != nil:
		return err
	case charges > 0:
		return errCharged // by an earlier holder, perhaps one whose lease was over
	}
	_, err = tx.ExecContext(ctx,
		`INSERT INTO charges (order_id, cents) VALUES (?, ?)`, order, cents)
	if err != nil {
		return err
	}
	return tx.Commit()
}
