package main

import (
	"context"
	"fmt"
)

// verdict is what the database says about a run. Nothing in it was counted by
// the program.
type verdict struct {
	Orders, Once, More, Never int
	Charges                   int
	Refusals                  int
	Totals                    []total
}

// total compares, in one currency, what was ordered with what was charged.
type total struct{ Ordered, Charged money }

// holds says whether every order, and nothing else, was charged exactly once.
func (v verdict) holds() bool {
	for _, t := range v.Totals {
		if t.Ordered != t.Charged {
			return false
		}
	}
	return v.Orders > 0 && v.Once == v.Orders && v.Charges == v.Orders
}

func (s *store) verdict(ctx context.Context) (verdict, error) {
	var v verdict
	err := s.db.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(times = 1), 0), coalesce(sum(times > 1), 0), coalesce(sum(times = 0), 0),
			(SELECT count(*) FROM charges), (SELECT count(*) FROM refusals)
		FROM (SELECT count(c.order_id) AS times FROM orders o LEFT JOIN charges c ON c.order_id = o.id GROUP BY o.id)`,
	).Scan(&v.Orders, &v.Once, &v.More, &v.Never, &v.Charges, &v.Refusals)
	if err != nil {
		return verdict{}, fmt.Errorf("store: %w", err)
	}
	v.Totals, err = s.totals(ctx)
	return v, err
}

func (s *store) totals(ctx context.Context) ([]total, error) {
	rows, err := s.db.QueryContext(ctx, `
		SELECT currency, sum(amount), sum(coalesce(
			(SELECT sum(c.amount) FROM charges c WHERE c.order_id = o.id), 0))
		FROM orders o GROUP BY currency ORDER BY currency`)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	defer rows.Close()
	var totals []total
	for rows.Next() {
		var t total
		if err := rows.Scan(&t.Ordered.Currency, &t.Ordered.Minor, &t.Charged.Minor); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		t.Charged.Currency = t.Ordered.Currency
		totals = append(totals, t)
	}
	return totals, rows.Err()
}
