package main

import (
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shippedOrders lets the program run from any folder without arguments.
//
//go:embed orders.csv
var shippedOrders string

var columns = []string{"id", "customer", "amount", "currency"}

// badRow is a row that was skipped, and why.
type badRow struct {
	Line   int
	Reason string
}

// readOrders reads a CSV with the header id,customer,amount,currency.
//
// Each line is a row of its own: a quoted field may hold commas and doubled
// quotes but no line break, so that an unclosed quote costs its own row and not
// the rest of the file. Malformed rows are returned beside the good ones, and
// blank lines are skipped but counted. Only a missing header or a failing
// reader is an error.
func readOrders(r io.Reader) ([]order, []badRow, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, nil, err
	}
	sheet := sheet{firstLine: map[string]int{}}
	line := 0
	for row := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		line++
		if err := sheet.add(line, strings.TrimRight(row, "\r\n")); err != nil {
			return nil, nil, err
		}
	}
	if !sheet.headed {
		return nil, nil, errNoHeader(1)
	}
	return sheet.orders, sheet.bad, nil
}

func errNoHeader(line int) error {
	return fmt.Errorf("line %d: want the header %s", line, strings.Join(columns, ","))
}

// sheet is a CSV half read.
type sheet struct {
	headed    bool
	orders    []order
	bad       []badRow
	firstLine map[string]int // by order id
}

func (s *sheet) add(line int, row string) error {
	if strings.TrimSpace(row) == "" {
		return nil
	}
	fields, err := splitRow(row)
	if !s.headed {
		if err != nil || !isHeader(fields) {
			return errNoHeader(line)
		}
		s.headed = true
		return nil
	}
	if err == nil {
		err = s.addOrder(line, fields)
	}
	if err != nil {
		s.bad = append(s.bad, badRow{Line: line, Reason: err.Error()})
	}
	return nil
}

func isHeader(fields []string) bool {
	return slices.EqualFunc(fields, columns, strings.EqualFold)
}

func splitRow(row string) ([]string, error) {
	if !utf8.ValidString(row) {
		return nil, errors.New("not valid UTF-8")
	}
	reader := csv.NewReader(strings.NewReader(row))
	reader.FieldsPerRecord = -1 // counted in parseOrder, which says it better
	fields, err := reader.Read()
	if err != nil {
		return nil, quoteFault(err)
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	return fields, nil
}

// quoteFault drops the position from encoding/csv's error: it counts from the
// row's own start, not from the file's.
func quoteFault(err error) error {
	switch {
	case errors.Is(err, csv.ErrBareQuote):
		return errors.New("quote inside an unquoted field")
	case errors.Is(err, csv.ErrQuote):
		return errors.New("unclosed or stray quote")
	}
	return err
}

// addOrder refuses a repeated id: which of the two rows is meant cannot be
// known, and charging both might charge one order twice.
func (s *sheet) addOrder(line int, fields []string) error {
	o, err := parseOrder(fields)
	if err != nil {
		return err
	}
	if first, seen := s.firstLine[o.ID]; seen {
		return fmt.Errorf("id %s was used on line %d", quote(o.ID), first)
	}
	s.firstLine[o.ID] = line
	s.orders = append(s.orders, o)
	return nil
}

func parseOrder(fields []string) (order, error) {
	if len(fields) != len(columns) {
		return order{}, fmt.Errorf("%d fields instead of %d", len(fields), len(columns))
	}
	o := order{ID: fields[0], Customer: fields[1]}
	if err := checkID(o.ID); err != nil {
		return order{}, err
	}
	if o.Customer == "" {
		return order{}, errors.New("no customer")
	}
	var err error
	o.Amount, err = parseMoney(fields[2], fields[3])
	return o, err
}

// checkID keeps ids fit to be lock names and table cells.
func checkID(id string) error {
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	switch {
	case id == "":
		return errors.New("no id")
	case len(id) > 32 || strings.ContainsFunc(id, odd):
		return fmt.Errorf("id %s is longer than 32 bytes or has blanks in it", quote(id))
	}
	return nil
}
