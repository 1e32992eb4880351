package main

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

const header = "id,customer,amount,currency\n"

func eur(id, customer string, minor int64) order {
	return order{ID: id, Customer: customer, Amount: money{minor, "EUR"}}
}

func TestGoodRowsInEveryDress(t *testing.T) {
	want := []order{eur("a", "Ann", 100), eur("b", "Bob", 250)}
	for name, text := range map[string]string{
		"plain":               header + "a,Ann,1.00,EUR\nb,Bob,2.50,EUR\n",
		"no last line break":  header + "a,Ann,1.00,EUR\nb,Bob,2.50,EUR",
		"CRLF":                strings.ReplaceAll(header+"a,Ann,1.00,EUR\nb,Bob,2.50,EUR\n", "\n", "\r\n"),
		"byte order mark":     "\ufeff" + header + "a,Ann,1.00,EUR\nb,Bob,2.50,EUR\n",
		"blank lines":         "\n" + header + "\n  \na,Ann,1.00,EUR\n\r\nb,Bob,2.50,EUR\n\n",
		"padded":              "ID, Customer ,AMOUNT,currency\n a , Ann,1.00 ,EUR\nb,Bob,2.50, EUR \n",
		"quoted for no need":  header + `"a","Ann","1.00","EUR"` + "\n" + `b,"Bob",2.50,EUR`,
		"quoted header, CRLF": `"id","customer","amount","currency"` + "\r\na,Ann,1.00,EUR\r\nb,Bob,2.50,EUR\r\n",
	} {
		orders, bad, err := readOrders(strings.NewReader(text))
		require.NoError(t, err, name)
		require.Empty(t, bad, name)
		require.Equal(t, want, orders, name)
	}
}

func TestQuotedFieldsHoldCommasAndQuotes(t *testing.T) {
	orders, bad, err := readOrders(strings.NewReader(header + `a,"Müller, Hans & Söhne",1,EUR` + "\n" + `b,"Café ""La Ruche""",2.50,EUR`))
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Equal(t, []order{eur("a", "Müller, Hans & Söhne", 100), eur("b", `Café "La Ruche"`, 250)}, orders)
}

// Each malformed row stands between two good ones that must both survive it.
func TestMalformedRowCostsItselfOnly(t *testing.T) {
	for row, reason := range map[string]string{
		"x,Xia,1.00":                         "3 fields instead of 4",
		"x,Xia,1.00,EUR,":                    "5 fields instead of 4",
		"x;Xia;1.00;EUR":                     "1 fields instead of 4",
		`x,"Xia,1.00,EUR`:                    "unclosed or stray quote",
		`x,"Xia" Li,1.00,EUR`:                "unclosed or stray quote",
		`x,Xia "Li",1.00,EUR`:                "quote inside an unquoted field",
		",Xia,1.00,EUR":                      "no id",
		"  ,Xia,1.00,EUR":                    "no id",
		"x y,Xia,1.00,EUR":                   `id "x y" is longer than 32 bytes or has blanks in it`,
		"x\x1b[2J,Xia,1.00,EUR":              `id "x\x1b[2J" is longer than 32 bytes or has blanks in it`,
		"x,,1.00,EUR":                        "no customer",
		"x,Xia,,EUR":                         `amount "" is not a decimal number`,
		"x,Xia,-1.00,EUR":                    `amount "-1.00" is negative`,
		`x,Xia,"1,299.00",EUR`:               `amount "1,299.00" is not a decimal number`,
		"x,Xia,1.00,XXX":                     `unknown currency "XXX"`,
		"a,Xia,1.00,EUR":                     `id "a" was used on line 2`,
		"x,Xi\xff,1.00,EUR":                  "not valid UTF-8",
		"id,customer,amount,currency":        `unknown currency "currency"`,
		strings.Repeat("x", 33) + ",X,1,EUR": `id "xxxxxxxxxxxxxxxxxxxxxxx…" is longer than 32 bytes or has blanks in it`,
	} {
		orders, bad, err := readOrders(strings.NewReader(header + "a,Ann,1.00,EUR\n\n" + row + "\nb,Bob,2.50,EUR\n"))
		require.NoError(t, err, row)
		require.Equal(t, []badRow{{Line: 4, Reason: reason}}, bad, row)
		require.Equal(t, []order{eur("a", "Ann", 100), eur("b", "Bob", 250)}, orders, row)
	}
}

// The id of a row that was skipped is free: the row with the right amount counts.
func TestSkippedRowDoesNotUseUpItsID(t *testing.T) {
	orders, bad, err := readOrders(strings.NewReader(header + "a,Ann,oops,EUR\na,Ann,1.00,EUR\n"))
	require.NoError(t, err)
	require.Len(t, bad, 1)
	require.Equal(t, []order{eur("a", "Ann", 100)}, orders)
}

func TestMissingHeaderIsAnError(t *testing.T) {
	for text, fault := range map[string]string{
		"":                              "line 1: want the header id,customer,amount,currency",
		"\n\n":                          "line 1: want the header",
		"\na,Ann,1.00,EUR\n":            "line 2: want the header",
		"id;customer;amount;currency":   "line 1: want the header",
		"id,\"customer,amount,curr\n":   "line 1: want the header",
		"\ufeff\ufeff" + header:         "line 1: want the header",
		"id,customer,currency,amount\n": "line 1: want the header",
	} {
		_, _, err := readOrders(strings.NewReader(text))
		require.ErrorContains(t, err, fault, "%q", text)
	}
}

func TestFailingReaderIsAnError(t *testing.T) {
	broken := errors.New("disk on fire")
	_, _, err := readOrders(iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
}

func TestShippedOrders(t *testing.T) {
	orders, bad, err := readOrders(strings.NewReader(shippedOrders))
	require.NoError(t, err)
	require.Len(t, orders, 300)
	require.Equal(t, []badRow{
		{42, "unclosed or stray quote"},
		{79, "quote inside an unquoted field"},
		{117, "3 fields instead of 4"},
		{153, `amount "-12.50" is negative`},
		{196, `amount "1,299.00" is not a decimal number`},
		{228, `id "A-10276" was used on line 186`},
		{260, `amount "4500.50" has more decimals than JPY (0)`},
		{296, "no id"},
	}, bad)
}

// However the bytes fall, every line is accounted for: the header, a blank, an
// order or a malformed row.
func FuzzEveryLineIsAccountedFor(f *testing.F) {
	f.Add("a,Ann,1.00,EUR\n\"")
	f.Add("a,\"A\r\nnn\",1.00,EUR\r\n\r\n")
	f.Add("\x00,\xff,,\n,,,,\n\n")
	f.Fuzz(func(t *testing.T, body string) {
		orders, bad, err := readOrders(strings.NewReader(header + body))
		require.NoError(t, err)
		rows := 0
		for line := range strings.Lines(body) {
			if strings.TrimSpace(line) != "" {
				rows++
			}
		}
		require.Equal(t, rows, len(orders)+len(bad))
	})
}
