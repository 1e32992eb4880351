package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// order is one row of the CSV: what to charge, and to whom.
type order struct {
	ID       string
	Customer string
	Amount   money
}

// money is an exact amount: a count of the currency's smallest unit, never a
// float, so that the sums of the verdict can be compared to the cent.
type money struct {
	Minor    int64
	Currency string
}

// places says how many decimals a currency has (ISO 4217). One that is missing
// here is refused, since nothing tells what its smallest unit is.
var places = map[string]int{
	"AUD": 2, "CAD": 2, "CHF": 2, "CZK": 2, "DKK": 2, "EUR": 2, "GBP": 2,
	"JPY": 0, "KWD": 3, "NOK": 2, "PLN": 2, "SEK": 2, "USD": 2,
}

// maxMinor keeps the sum of millions of orders inside the 64 bits that SQL sums in.
const maxMinor = 1_000_000_000_000

// parseMoney reads digits with an optional point and no more decimals than the
// currency has. Signs, exponents and thousands separators are refused: a guess
// at what "1,299" means is a wrong charge for somebody.
func parseMoney(amount, currency string) (money, error) {
	decimals, known := places[currency]
	if !known {
		return money{}, fmt.Errorf("unknown currency %s", quote(currency))
	}
	whole, fraction, point := strings.Cut(amount, ".")
	switch {
	case strings.HasPrefix(amount, "-"):
		return money{}, fmt.Errorf("amount %s is negative", quote(amount))
	case !isDigits(whole), point && !isDigits(fraction):
		return money{}, fmt.Errorf("amount %s is not a decimal number", quote(amount))
	case len(fraction) > decimals:
		return money{}, fmt.Errorf("amount %s has more decimals than %s (%d)", quote(amount), currency, decimals)
	}
	minor, err := minorUnits(whole + fraction + strings.Repeat("0", decimals-len(fraction)))
	if err != nil {
		return money{}, fmt.Errorf("amount %s %w", quote(amount), err)
	}
	return money{Minor: minor, Currency: currency}, nil
}

func minorUnits(digits string) (int64, error) {
	minor, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil || minor > maxMinor:
		return 0, errors.New("is too large")
	case minor == 0:
		return 0, errors.New("is zero")
	}
	return minor, nil
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func (m money) String() string {
	decimals := places[m.Currency]
	digits := fmt.Sprintf("%0*d", decimals+1, m.Minor)
	if decimals == 0 {
		return digits + " " + m.Currency
	}
	point := len(digits) - decimals
	return digits[:point] + "." + digits[point:] + " " + m.Currency
}

// quote shows a stranger's text on one short line and without control
// characters, which a terminal would obey.
func quote(s string) string {
	const most = 24
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most-1]) + "…"
	}
	return strconv.Quote(s)
}
