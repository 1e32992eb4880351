package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "orders.csv")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestExitCodes(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.csv")
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-h"}, 0, "usage: orders [flags]"},
		{[]string{"-nonsense"}, 2, "orders: flag provided but not defined: -nonsense\n"},
		{[]string{"orders.csv"}, 2, `orders: unexpected argument "orders.csv" (see -h)`},
		{[]string{"-workers", "0"}, 2, "orders: -workers 0: want 1 to 64"},
		{[]string{"-workers", "many"}, 2, `orders: invalid value "many" for flag -workers`},
		{[]string{"-ttl", "1ms"}, 2, "orders: -ttl 1ms: want 50ms to 1m"},
		{[]string{"-ttl", "5"}, 2, `orders: invalid value "5" for flag -ttl`},
		{[]string{"-redis", "localhost"}, 2, `orders: -redis "localhost": want host:port`},
		{[]string{"-redis", "localhost:"}, 2, `orders: -redis "localhost:": want host:port`},
		{[]string{"-orders", missing}, 1, "no such file"},
		{[]string{"-orders", writeFile(t, "a,b\n")}, 1, "orders.csv: line 1: want the header id,customer,amount,currency"},
		{[]string{"-orders", writeFile(t, header)}, 1, "orders.csv: no valid order, and 0 malformed rows"},
	} {
		var stdout, stderr page
		code := cli(t.Context(), test.args, &stdout, &stderr, style{})
		require.Equal(t, test.code, code, test.args)
		require.Contains(t, stderr.String(), test.says, test.args)
		require.Empty(t, stdout.String(), test.args)
	}
}

func TestUnreachableRedisIsSaidAtOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	var stdout, stderr page
	require.Equal(t, 1, cli(t.Context(), []string{"-redis", addr}, &stdout, &stderr, style{}))
	require.Contains(t, stderr.String(), "orders: no Redis at "+addr)
}

func TestOrdersFromAFile(t *testing.T) {
	file := writeFile(t, header+"solo,Ann,1.00,EUR\nsolo,Ann,1.00,EUR\n")
	var stdout, stderr page
	require.Zero(t, cli(t.Context(), []string{"-orders", file, "-ttl", "100ms"}, &stdout, &stderr, style{}), stdout.String())
	stdout.has(t, `^1 order, 5 workers`)
	stdout.has(t, `^orders\.csv: 1 malformed row skipped$`)
	stdout.has(t, `^OK: every order was charged exactly once \(1 of 1\)\.$`)
	require.Empty(t, stderr.String())
}

func TestUnsafeRunEndsWellAndSaysWhatItDid(t *testing.T) {
	var stdout, stderr page
	require.Zero(t, cli(t.Context(), []string{"-unsafe", "-ttl", "100ms"}, &stdout, &stderr, style{}))
	stdout.has(t, `^UNSAFE: no lock and no fence$`)
	require.Empty(t, stderr.String())
}
