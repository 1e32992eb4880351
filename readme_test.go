package redislock_test

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// TestReadmeSnippets keeps the README's Go from rotting. A block that is a whole
// program is built and run; every other block must stand, line by line, in a test
// file, where it is compiled and most often run.
func TestReadmeSnippets(t *testing.T) {
	blocks := goBlocks(t, readReadme(t))
	require.NotEmpty(t, blocks)
	compiled := flat(sources(t, "*_test.go"))
	for _, block := range blocks {
		if strings.HasPrefix(block, "package main\n") {
			requireRuns(t, block)
			continue
		}
		require.Contains(t, compiled, flat(block), "this block of the README stands in no test file:\n%s", block)
	}
}

// TestReadmeLinks: every link of the README leads somewhere.
func TestReadmeLinks(t *testing.T) {
	readme := readReadme(t)
	headings := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^##+ (.+)$`).FindAllStringSubmatch(readme, -1) {
		words := strings.ToLower(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(m[1], ""))
		headings["#"+strings.ReplaceAll(words, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(readme, -1) {
		if strings.HasPrefix(m[1], "#") {
			require.True(t, headings[m[1]], "no heading for %s", m[1])
		} else {
			require.FileExists(t, m[1])
		}
	}
}

// TestReadmeLogMessages: the messages in the README are those in the sources.
func TestReadmeLogMessages(t *testing.T) {
	listed := firstColumn(t, "| message | when |")
	logged := regexp.MustCompile(`(?i)warn\("(redislock: [^"]+)"`).FindAllStringSubmatch(sources(t, "*.go"), -1)
	require.NotEmpty(t, logged)
	said := make(map[string]bool)
	for _, m := range logged {
		said[m[1]] = true
	}
	for _, message := range listed {
		require.True(t, said[message], "nobody logs %q", message)
	}
	require.Len(t, listed, len(said), "messages that the README does not list: %v", said)
}

// firstColumn returns what stands between the first backquotes of each row.
func firstColumn(t *testing.T, head string) (cells []string) {
	t.Helper()
	_, table, found := strings.Cut(readReadme(t), head+"\n")
	require.True(t, found)
	for row := range strings.Lines(table) {
		cell := strings.Split(row, "`")
		if !strings.HasPrefix(row, "|") {
			break
		}
		if len(cell) > 1 {
			cells = append(cells, cell[1])
		}
	}
	return cells
}

// TestReadmeACL: the user of the README may do everything, and is pushed its grants.
func TestReadmeACL(t *testing.T) {
	server := redistest.Start(t)
	line := regexp.MustCompile(`(?m)^ACL SETUSER app on >secret .+$`).FindString(readReadme(t))
	require.NotEmpty(t, line)
	var words []any
	for _, word := range strings.Fields(line) {
		words = append(words, word)
	}
	server.Do(t, words...)
	client := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
	var log bytes.Buffer // read when everybody is done
	logger := slog.New(slog.NewTextHandler(&log, nil))
	here, there := redislock.New(client, redislock.WithLogger(logger)), redislock.New(client, redislock.WithLogger(logger))

	lock, err := here.Acquire(t.Context(), "a", time.Minute)
	require.NoError(t, err)
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	granted := make(chan error)
	go func() {
		lock, err := there.Acquire(t.Context(), "a", time.Minute)
		if err == nil {
			err = lock.Release(t.Context())
		}
		granted <- err
	}()
	require.Eventually(t, func() bool {
		info, err := here.Inspect(t.Context(), "a")
		return err == nil && info.Waiters == 1
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-granted)
	require.Empty(t, log.String())
}

func readReadme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(text)
}

// goBlocks returns the code between ```go and ```.
func goBlocks(t *testing.T, text string) (blocks []string) {
	t.Helper()
	_, rest, found := strings.Cut(text, "```go\n")
	for found {
		block, after, closed := strings.Cut(rest, "```")
		require.True(t, closed, "a code block is not closed:\n%s", rest)
		blocks = append(blocks, block)
		_, rest, found = strings.Cut(after, "```go\n")
	}
	return blocks
}

func sources(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(source)
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
