package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMoneyIsReadExactly(t *testing.T) {
	for _, test := range []struct {
		amount, currency string
		minor            int64
		text             string
	}{
		{"19.90", "EUR", 1990, "19.90 EUR"},
		{"19.9", "EUR", 1990, "19.90 EUR"},
		{"19", "EUR", 1900, "19.00 EUR"},
		{"0.01", "USD", 1, "0.01 USD"},
		{"0.29", "USD", 29, "0.29 USD"}, // as a float, times 100, it is 28.999…
		{"007.50", "GBP", 750, "7.50 GBP"},
		{"4500", "JPY", 4500, "4500 JPY"},
		{"1.005", "KWD", 1005, "1.005 KWD"},
		{"10000000000.00", "EUR", maxMinor, "10000000000.00 EUR"},
	} {
		m, err := parseMoney(test.amount, test.currency)
		require.NoError(t, err, test.amount)
		require.Equal(t, money{Minor: test.minor, Currency: test.currency}, m)
		require.Equal(t, test.text, m.String())
	}
}

func TestMoneyThatCannotBeReadExactlyIsRefused(t *testing.T) {
	for _, test := range []struct{ amount, currency, fault string }{
		{"-5.00", "EUR", "is negative"},
		{"+5.00", "EUR", "not a decimal number"},
		{"1,299.00", "EUR", "not a decimal number"},
		{"12,50", "EUR", "not a decimal number"},
		{"1e3", "EUR", "not a decimal number"},
		{"5.", "EUR", "not a decimal number"},
		{".5", "EUR", "not a decimal number"},
		{"1.2.3", "EUR", "not a decimal number"},
		{"٥", "EUR", "not a decimal number"},
		{"", "EUR", "not a decimal number"},
		{"NaN", "EUR", "not a decimal number"},
		{"0.00", "EUR", "is zero"},
		{"1.999", "EUR", "more decimals than EUR (2)"},
		{"1.0", "JPY", "more decimals than JPY (0)"},
		{"10000000000.01", "EUR", "too large"},
		{strings.Repeat("9", 40), "EUR", "too large"},
		{"5.00", "eur", "unknown currency"},
		{"5.00", "", "unknown currency"},
	} {
		_, err := parseMoney(test.amount, test.currency)
		require.ErrorContains(t, err, test.fault, "%q %q", test.amount, test.currency)
	}
}

func TestStrangersTextIsShownShortAndTame(t *testing.T) {
	require.Equal(t, `"\x1b[2J\a"`, quote("\x1b[2J\a"))
	require.Equal(t, `"ääääääääääääääääääääääää"`, quote(strings.Repeat("ä", 24)))
	require.Equal(t, `"äääääääääääääääääääääää…"`, quote(strings.Repeat("ä", 25)))
}
