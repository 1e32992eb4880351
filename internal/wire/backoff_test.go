package wire

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestRepeat(t *testing.T) {
	for name, c := range map[string]struct {
		errs   []error // of the tries
		enough int     // the try that ends it; 0: none
		want   int
		alone  bool // the last try
	}{
		"success":                     {[]error{nil}, 0, 1, false},
		"success after a failure":     {[]error{io.EOF, nil}, 0, 2, false},
		"failure":                     {[]error{io.EOF, io.EOF, io.EOF, nil}, 0, Tries, true},
		"failure that is everybody's": {[]error{serverError("LOADING x"), serverError("LOADING x"), io.EOF}, 0, Tries, false},
		"failure that does not pass":  {[]error{io.EOF, redis.ErrClosed}, 0, 2, false},
		"enough":                      {[]error{io.EOF, io.EOF, io.EOF}, 2, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				var last bool
				err := Repeat(t.Context(), func(alone bool) (bool, error) {
					n, last = n+1, alone
					return n == c.enough, c.errs[n-1]
				})
				require.Equal(t, c.errs[c.want-1], err)
				require.Equal(t, c.want, n)
				require.Equal(t, c.alone, last)
			})
		})
	}
}

func TestRepeatEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		n := 0
		require.Equal(t, io.EOF, Repeat(ctx, func(bool) (bool, error) { n++; return false, io.EOF }))
		require.Equal(t, 1, n)
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.Equal(t, io.EOF, Repeat(ctx, func(bool) (bool, error) { n++; return false, io.EOF }))
		require.Equal(t, 2, n, "once, whatever ctx is")
	})
}
