package redistest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// readers cut a stream up in the ways a network may.
var readers = map[string]func(io.Reader) io.Reader{
	"whole":   func(r io.Reader) io.Reader { return r },
	"byte":    iotest.OneByteReader,
	"half":    iotest.HalfReader,
	"dataErr": iotest.DataErrReader,
}

var frames = map[string]struct {
	raw   string
	kind  byte
	words []string
}{
	"simple":      {"+OK\r\n", '+', nil},
	"empty":       {"+\r\n", '+', nil},
	"error":       {"-ERR no\r\n", '-', nil},
	"integer":     {":-42\r\n", ':', nil},
	"bulk":        {"$3\r\na\r\n\r\n", '$', nil},
	"emptyBulk":   {"$0\r\n\r\n", '$', nil},
	"nullBulk":    {"$-1\r\n", '$', nil},
	"nullArray":   {"*-1\r\n", '*', nil},
	"emptyArray":  {"*0\r\n", '*', nil},
	"array":       {"*3\r\n$1\r\na\r\n:1\r\n$-1\r\n", '*', []string{"a", "1"}},
	"nested":      {"*2\r\n*2\r\n+x\r\n*1\r\n:1\r\n$1\r\nb\r\n", '*', []string{"", "b"}},
	"null":        {"_\r\n", '_', nil},
	"bool":        {"#t\r\n", '#', nil},
	"double":      {",1.5\r\n", ',', nil},
	"bigNumber":   {"(3492890328409238509324850943850943825024385\r\n", '(', nil},
	"blobError":   {"!5\r\nERR x\r\n", '!', nil},
	"verbatim":    {"=5\r\ntxt:x\r\n", '=', nil},
	"map":         {"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n*0\r\n", '%', []string{"a", "1"}},
	"set":         {"~2\r\n+a\r\n+b\r\n", '~', []string{"a", "b"}},
	"push":        {">3\r\n+message\r\n$1\r\nc\r\n$1\r\nm\r\n", '>', []string{"message", "c"}},
	"attribute":   {"|1\r\n+ttl\r\n:3\r\n*2\r\n+a\r\n+b\r\n", '*', []string{"a", "b"}},
	"newline":     {"\n", '\n', nil},
	"longLine":    {"+" + strings.Repeat("x", 100<<10) + "\r\n", '+', nil},
	"bigBulk":     {"$3000000\r\n" + strings.Repeat("\r\n+", 1000000) + "\r\n", '$', nil},
	"innerMarker": {"*1\r\n$6\r\n*1\r\n$1\r\n", '*', []string{"*1\r\n$1"}},
}

func TestFrameKeepsEveryByteOfEveryType(t *testing.T) {
	t.Parallel()
	for name, want := range frames {
		for how, cut := range readers {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				w := newWire(cut(strings.NewReader(want.raw + ":7\r\n")))
				f, err := w.frame()
				require.NoError(t, err)
				require.True(t, want.raw == string(f.raw), "bytes differ")
				require.Equal(t, want.kind, f.kind)
				require.Equal(t, want.words, f.words)
				next, err := w.frame()
				require.NoError(t, err)
				require.Equal(t, ":7\r\n", string(next.raw))
				_, err = w.frame()
				require.ErrorIs(t, err, io.EOF)
			})
		}
	}
}

func TestFrameThatEndsEarlyLeavesWhatCame(t *testing.T) {
	t.Parallel()
	for name, want := range frames {
		for _, n := range []int{1, len(want.raw) / 2, len(want.raw) - 1} {
			if n < 1 || n >= len(want.raw) {
				continue
			}
			f, err := newWire(strings.NewReader(want.raw[:n])).frame()
			require.Error(t, err, name)
			require.NotErrorIs(t, err, errMalformed, name)
			require.True(t, want.raw[:n] == string(f.raw), "%s: bytes differ", name)
		}
	}
}

func TestMalformedFramesAreToldFromBrokenConnections(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"?\r\n", "\r\n", "+OK\n", "$x\r\n", "$-2\r\n", "$99999999999\r\n", "$1\r\nabc", "*1\r\nX1\r\n", "%\r\n",
	} {
		_, err := newWire(strings.NewReader(raw)).frame()
		require.ErrorIs(t, err, errMalformed, "%q", raw)
	}
}

func TestRequestsOfAPipelineAreTakenApart(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("\r\n", 1<<20)
	want := [][]string{{"PING"}, {"set", "k", big}, {"eval", "return 1", "0", ""}, {}, {"get", "k"}}
	var stream bytes.Buffer
	for _, args := range want {
		stream.Write(encode(args...))
	}
	for how, cut := range readers {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWire(cut(bytes.NewReader(stream.Bytes())))
			for _, args := range want {
				req, err := w.request()
				require.NoError(t, err)
				require.True(t, bytes.Equal(encode(args...), req.raw), "bytes differ")
				require.Equal(t, args, req.args)
			}
			_, err := w.request()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"PING\r\n", "*1\r\n:1\r\n", "*1\r\n$1\r\nab\r\n", "*x\r\n"} {
		_, err := newWire(strings.NewReader(raw)).request()
		require.ErrorIs(t, err, errMalformed, "%q", raw)
	}
	for _, raw := range []string{"", "*", "*2\r\n$1\r\na\r\n", "*1\r\n$5\r\nab"} {
		w := newWire(strings.NewReader(raw))
		_, err := w.request()
		require.NotErrorIs(t, err, errMalformed, "%q", raw)
		require.Error(t, err)
		require.Equal(t, raw, string(w.partial()))
	}
}

func FuzzFrame(f *testing.F) {
	for _, frame := range frames {
		if len(frame.raw) < 1000 {
			f.Add([]byte(frame.raw))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := bytes.NewReader(stream)
		w := newWire(in)
		var got []byte
		for {
			frame, err := w.frame()
			got = append(got, frame.raw...)
			if err != nil {
				require.True(t, errors.Is(err, errMalformed) || in.Len() == 0, "%v", err)
				break
			}
		}
		require.True(t, bytes.HasPrefix(stream, got), "%q is no beginning of %q", got, stream)
	})
}
