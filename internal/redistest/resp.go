package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxBulk is the largest string Redis itself takes. More means that the reader
// has lost its place.
const maxBulk = 512 << 20

// errMalformed marks bytes that are not RESP, as opposed to a connection that
// ended.
var errMalformed = errors.New("malformed RESP")

// request is one command as the client sent it.
type request struct {
	raw  []byte
	args []string // empty for an empty array, which a server ignores
}

// frame is one reply, or one message out of turn, as the server sent it.
type frame struct {
	raw   []byte
	kind  byte     // its first byte, of the value that follows an attribute
	words []string // the first two elements of an array or push; "" if not strings
}

// wire reads whole RESP2 and RESP3 values from a connection and keeps their
// bytes.
type wire struct {
	in  *bufio.Reader
	raw []byte // the value being read; whoever gets it owns it
}

func newWire(conn io.Reader) *wire {
	return &wire{in: bufio.NewReaderSize(conn, 32<<10)}
}

// partial returns the bytes of the value in which the last read ended.
func (w *wire) partial() []byte { return w.raw }

// chunk returns whatever bytes come next, for a stream that is not RESP.
func (w *wire) chunk() ([]byte, error) {
	w.raw = nil
	if _, err := w.in.Peek(1); err != nil {
		return nil, err
	}
	b := make([]byte, w.in.Buffered())
	_, err := io.ReadFull(w.in, b)
	return b, err
}

// request reads one array of bulk strings.
func (w *wire) request() (request, error) {
	w.raw = nil
	n, err := w.header('*')
	if err != nil {
		return request{}, err
	}
	args := make([]string, 0, max(n, 0))
	for range n {
		size, err := w.header('$')
		if err != nil {
			return request{}, err
		}
		arg, err := w.bulk(size)
		if err != nil {
			return request{}, err
		}
		args = append(args, string(arg))
	}
	return request{raw: w.raw, args: args}, nil
}

// header reads a line of one kind that carries a number.
func (w *wire) header(kind byte) (int, error) {
	line, err := w.line()
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%w: %q in place of %q", errMalformed, line, kind)
	}
	return size(line)
}

// frame reads one reply. A bare newline, with which a primary keeps a waiting
// replica patient, is a frame of kind '\n'.
func (w *wire) frame() (frame, error) {
	w.raw = nil
	if b, err := w.in.Peek(1); err == nil && b[0] == '\n' {
		_, err = w.in.Discard(1)
		return frame{raw: []byte{'\n'}, kind: '\n'}, err
	}
	var f frame
	kind, _, err := w.value(&f.words)
	f.raw, f.kind = w.raw, kind
	return f, err
}

// value reads a value of any kind with all it contains, and returns the text of
// a simple one. Of an aggregate it adds the leading elements to words, unless
// that is nil.
func (w *wire) value(words *[]string) (kind byte, text []byte, err error) {
	line, err := w.line()
	if err != nil {
		return 0, nil, err
	}
	kind = line[0]
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return kind, line[1:], nil
	}
	n, err := size(line)
	if err != nil {
		return kind, nil, err
	}
	switch kind {
	case '$', '=', '!':
		text, err = w.bulk(n)
	case '*', '~', '>':
		err = w.elements(n, words)
	case '%':
		err = w.elements(2*n, words)
	case '|': // an attribute of the value that follows, and part of it
		if err = w.elements(2*n, nil); err == nil {
			return w.value(words)
		}
	default:
		err = fmt.Errorf("%w: %q", errMalformed, line)
	}
	return kind, text, err
}

func (w *wire) elements(n int, words *[]string) error {
	for range n {
		_, text, err := w.value(nil)
		if err != nil {
			return err
		}
		if words != nil && len(*words) < 2 {
			*words = append(*words, string(text))
		}
	}
	return nil
}

// bulk reads n bytes and the line end; a null string (-1) has neither.
func (w *wire) bulk(n int) ([]byte, error) {
	if n < 0 {
		return nil, nil
	}
	start, end := len(w.raw), len(w.raw)+n+2
	for len(w.raw) < end { // memory for what came, not for what was announced
		if err := w.more(min(end-len(w.raw), 1<<20)); err != nil {
			return nil, err
		}
	}
	if string(w.raw[start+n:]) != "\r\n" {
		return nil, fmt.Errorf("%w: string of %d bytes has no end", errMalformed, n)
	}
	return w.raw[start : start+n], nil
}

// more reads n bytes, or what there is of them.
func (w *wire) more(n int) error {
	start := len(w.raw)
	w.raw = slices.Grow(w.raw, n)[:start+n]
	got, err := io.ReadFull(w.in, w.raw[start:])
	w.raw = w.raw[:start+got]
	return err
}

// line reads one line and returns it without its end; it is never empty.
func (w *wire) line() ([]byte, error) {
	start := len(w.raw)
	for {
		part, err := w.in.ReadSlice('\n')
		w.raw = append(w.raw, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
	line := w.raw[start:]
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: %q", errMalformed, line)
	}
	return line[:len(line)-2], nil
}

func size(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < -1 || n > maxBulk {
		return 0, fmt.Errorf("%w: %q", errMalformed, line)
	}
	return n, nil
}

// encode is a request in wire form.
func encode(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// ask sends one request and returns the bytes of its reply.
func ask(conn io.Writer, w *wire, args ...string) (string, error) {
	if _, err := conn.Write(encode(args...)); err != nil {
		return "", err
	}
	f, err := w.frame()
	return string(f.raw), err
}
