package redislock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// TestReadmeSnippets keeps the README's Go from rotting. A block that is a whole
// program is built and run; every other block must stand, line by line, in a test
// file, where it is compiled and most often run.
func TestReadmeSnippets(t *testing.T) {
	blocks := goBlocks(t, "README.md")
	require.NotEmpty(t, blocks)
	compiled := testSources(t)
	for _, block := range blocks {
		if strings.HasPrefix(block, "package main\n") {
			requireRuns(t, block)
			continue
		}
		require.Contains(t, compiled, flat(block), "this block of the README stands in no test file:\n%s", block)
	}
}

// goBlocks returns the code between ```go and ```.
func goBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```go\n")
	for found {
		block, after, closed := strings.Cut(rest, "```")
		require.True(t, closed, "a code block is not closed:\n%s", rest)
		blocks = append(blocks, block)
		_, rest, found = strings.Cut(after, "```go\n")
	}
	return blocks
}

func testSources(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		all.WriteString(flat(string(source)))
	}
	return all.String()
}

// flat takes the indentation away, which differs with the place.
func flat(code string) string {
	var b strings.Builder
	b.WriteString("\n")
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// requireRuns runs a program against a Redis in memory, in the place of the one on
// localhost that the program names.
func requireRuns(t *testing.T, program string) {
	t.Helper()
	gotool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("a program of the README is not tried: %v", err)
	}
	const addr = `"localhost:6379"`
	require.Contains(t, program, addr)
	m := miniredis.RunT(t)
	program = strings.Replace(program, addr, `"`+m.Addr()+`"`, 1)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))

	out, err := exec.CommandContext(t.Context(), gotool, "run", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?m)^holding order:42, fence \d+$`, string(out))
	require.False(t, m.Exists("lock:order:42"), "the program has left its lock behind")
}
