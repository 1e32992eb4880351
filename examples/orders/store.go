package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	_ "modernc.org/sqlite" // SQLite in pure Go: no C compiler, nothing to install
)

// charges has no unique key on order_id, so that nothing but the lock and the
// fence keeps an order from being charged twice. A real ledger would have both.
//
// An order has two fences. fence is that of the last write. seen is that of the
// last look: a holder that found an order uncharged must not be overtaken by an
// older one between its look and its write, or both would charge.
const schema = `
CREATE TABLE orders (
	id       TEXT PRIMARY KEY,
	customer TEXT NOT NULL,
	amount   INTEGER NOT NULL,
	currency TEXT NOT NULL,
	seen     INTEGER NOT NULL DEFAULT 0,
	fence    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE charges (
	order_id TEXT NOT NULL REFERENCES orders (id),
	amount   INTEGER NOT NULL,
	worker   TEXT NOT NULL,
	fence    INTEGER NOT NULL
) STRICT;
CREATE INDEX charges_by_order ON charges (order_id);
CREATE TABLE refusals (
	order_id TEXT NOT NULL REFERENCES orders (id),
	worker   TEXT NOT NULL,
	fence    INTEGER NOT NULL
) STRICT;`

// errStale says that a newer holder of the lock has been at the order since.
var errStale = errors.New("store: stale fence: a newer holder has been here")

// store keeps the orders and what was charged for them.
type store struct{ db *sql.DB }

// openStore makes a fresh database in dir.
//
// SQLite has one writer at a time. A pool of one connection makes goroutines
// queue in database/sql, in order, rather than meet in the file as SQLITE_BUSY;
// busy_timeout is for a reader from outside. WAL with synchronous=NORMAL spares
// an fsync per commit.
func openStore(ctx context.Context, dir string, orders []order) (*store, error) {
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(dir, "orders.db"))}
	dsn.RawQuery = "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)" +
		"&_pragma=foreign_keys(1)&_txlock=immediate"
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	db.SetMaxOpenConns(1)
	s := &store{db: db}
	if err := s.fill(ctx, orders); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

func (s *store) close() error { return s.db.Close() }

func (s *store) fill(ctx context.Context, orders []order) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
		for _, o := range orders {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, amount, currency) VALUES (?, ?, ?, ?)`,
				o.ID, o.Customer, o.Amount.Minor, o.Amount.Currency); err != nil {
				return err
			}
		}
		return nil
	})
}

// look says whether the order is charged, and leaves the fence behind: from now
// on no older holder can write. It is errStale itself where a newer one has.
func (s *store) look(ctx context.Context, id string, fence int64) (charged bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `UPDATE orders SET seen = ?1 WHERE id = ?2 AND seen <= ?1`, fence, id)
		if err := mustChange(result, err); err != nil {
			return err
		}
		charged, err = isCharged(ctx, tx, id)
		return err
	})
	return charged, err
}

// charge books the order, unless this fence or a newer one has written to it or
// a newer one has looked. The check and the booking are one transaction; done
// apart, a stale writer would slip in between. A refusal is booked as well.
func (s *store) charge(ctx context.Context, o order, worker string, fence int64) error {
	stale := false
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx,
			`UPDATE orders SET fence = ?1 WHERE id = ?2 AND fence < ?1 AND seen <= ?1`, fence, o.ID)
		err = mustChange(result, err)
		if stale = errors.Is(err, errStale); stale {
			return refuse(ctx, tx, o, worker, fence)
		}
		if err != nil {
			return err
		}
		return book(ctx, tx, o, worker, fence)
	})
	if err == nil && stale {
		return errStale
	}
	return err
}

// charged and chargeUnfenced are what a program without a lock does.
func (s *store) charged(ctx context.Context, id string) (bool, error) {
	return isCharged(ctx, s.db, id)
}

// chargeUnfenced books the order and returns how often it is now charged.
func (s *store) chargeUnfenced(ctx context.Context, o order, worker string) (times int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if err := book(ctx, tx, o, worker, 0); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT count(*) FROM charges WHERE order_id = ?`, o.ID).Scan(&times)
	})
	return times, err
}

// querier is what *sql.DB and *sql.Tx have in common here.
type querier interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

func isCharged(ctx context.Context, q querier, id string) (charged bool, err error) {
	err = q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM charges WHERE order_id = ?)`, id).Scan(&charged)
	return charged, err
}

func book(ctx context.Context, tx *sql.Tx, o order, worker string, fence int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, amount, worker, fence) VALUES (?, ?, ?, ?)`,
		o.ID, o.Amount.Minor, worker, fence)
	return err
}

func refuse(ctx context.Context, tx *sql.Tx, o order, worker string, fence int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO refusals (order_id, worker, fence) VALUES (?, ?, ?)`, o.ID, worker, fence)
	return err
}

// mustChange turns "no row matched the fence" into errStale.
func mustChange(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	return errStale
}

func (s *store) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
