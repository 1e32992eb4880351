package redislock_test

import (
	"bytes"
	"io/fs"
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

// TestPageSnippets keeps the Go of all pages from rotting. A block that is a
// whole program is built and run; every other block must stand, line by line,
// in a Go file of this repository, where it is compiled and most often run.
func TestPageSnippets(t *testing.T) {
	compiled := flat(sources(t, func(string) bool { return true }))
	found := 0
	for page, text := range pages(t) {
		for _, block := range goBlocks(t, text) {
			found++
			if strings.HasPrefix(block, "package main\n") {
				requireRuns(t, block)
				continue
			}
			require.True(t, strings.Contains(compiled, flat(block)), "this block of %s stands in no Go file:\n%s", page, block)
		}
	}
	require.Greater(t, found, 10)
}

// TestPageLinks: every relative link of every page leads to a file or a folder,
// and to a heading of it if it names one.
func TestPageLinks(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			link := m[1]
			if strings.Contains(link, "://") {
				continue
			}
			path, heading, named := strings.Cut(link, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
				_, err := os.Stat(file)
				require.NoError(t, err, "%s links to %s", page, link)
			}
			if named {
				require.Contains(t, headings(all[file]), heading, "%s links to %s", page, link)
			}
		}
	}
}

// headings returns the anchors that a forge makes of a page's headings.
func headings(text string) (anchors []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		words := strings.ToLower(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(m[1], ""))
		anchors = append(anchors, strings.ReplaceAll(words, " ", "-"))
	}
	return anchors
}

// TestPageCommands: the folders, tests and make targets in the shell blocks of
// the pages exist.
func TestPageCommands(t *testing.T) {
	tests := sources(t, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(m[1]) {
				requireExists(t, page, strings.TrimSpace(line), tests, string(makefile))
			}
		}
	}
}

func requireExists(t *testing.T, page, line, tests, makefile string) {
	t.Helper()
	command, _, _ := strings.Cut(line, "#")
	words := strings.Fields(command)
	folder := "."
	for i, word := range words {
		last := ""
		if i > 0 {
			last = words[i-1]
		}
		switch {
		case last == "-C":
			folder = word
		case last == "-run" || last == "-fuzz":
			name := strings.Trim(word, "'^$")
			if regexp.MustCompile(`^\w+$`).MatchString(name) {
				require.True(t, strings.Contains(tests, "func "+name), "%s: %s", page, line)
			}
		case last == "make":
			require.True(t, strings.Contains(makefile, "\n"+word+":"), "%s: %s", page, line)
		case words[0] == "go" && strings.HasPrefix(word, "./") && !strings.HasSuffix(word, "..."):
			require.DirExists(t, filepath.Join(folder, word), "%s: %s", page, line)
		}
	}
}

// TestReadmeIsShort: what is too long for a first visit belongs under docs/.
func TestReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, strings.Count(readPage(t, "README.md"), "\n"), 170)
}

// operations is the page with the ACL line and the log messages.
var operations = filepath.Join("docs", "operations.md")

// TestPageLogMessages: the messages on the page are those in the sources.
func TestPageLogMessages(t *testing.T) {
	listed := firstColumn(t, "| message | when |")
	ours := func(file string) bool { // of the module, without its tests
		folder, _, _ := strings.Cut(filepath.ToSlash(file), "/")
		return folder != "bench" && folder != "examples" && !strings.HasSuffix(file, "_test.go")
	}
	logged := regexp.MustCompile(`(?:(?:[wW]arn|Error)\(|, )"(redislock: [^"]+)"`).FindAllStringSubmatch(sources(t, ours), -1)
	require.NotEmpty(t, logged)
	said := make(map[string]bool)
	for _, m := range logged {
		said[m[1]] = true
	}
	for _, message := range listed {
		require.True(t, said[message], "nobody logs %q", message)
	}
	require.Len(t, listed, len(said), "messages that the page does not list: %v", said)
}

// firstColumn returns what stands between the first backquotes of each row.
func firstColumn(t *testing.T, head string) (cells []string) {
	t.Helper()
	_, table, found := strings.Cut(readPage(t, operations), head+"\n")
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

// TestPageACL: the user of the page may do everything, and is pushed its
// grants.
func TestPageACL(t *testing.T) {
	server := redistest.Start(t)
	line := regexp.MustCompile(`(?m)^ACL SETUSER app on >secret .+$`).FindString(readPage(t, operations))
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

func readPage(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// pages are all Markdown files of the repository, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range files(t, ".md") {
		all[file] = readPage(t, file)
	}
	require.Contains(t, all, "README.md")
	require.Contains(t, all, operations)
	return all
}

// files are those of the repository with this ending, without hidden folders
// and testdata.
func files(t *testing.T, ending string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "testdata" || name != "." && strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, ending):
			found = append(found, path)
		}
		return nil
	}))
	return found
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

// sources is the text of the Go files that are wanted.
func sources(t *testing.T, wanted func(file string) bool) string {
	t.Helper()
	var all strings.Builder
	for _, file := range files(t, ".go") {
		if wanted(file) {
			all.WriteString(readPage(t, file))
		}
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

// requireRuns runs a program of a page against a Redis in memory, in the place
// of the one on localhost that the program names.
func requireRuns(t *testing.T, program string) {
	t.Helper()
	gotool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("a program of a page is not tried: %v", err)
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

// TestPageNames: what a page names as an option or an error of the package is
// exported by it.
func TestPageNames(t *testing.T) {
	declared := sources(t, func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
	found := 0
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("`((?:With|Err)[A-Z][A-Za-z]*)[`(]").FindAllStringSubmatch(text, -1) {
			found++
			name := regexp.MustCompile(`(?m)^(func |\t|var )(\(lk \*Locker\) )?` + m[1] + `\b`)
			require.True(t, name.MatchString(declared), "%s names %s", page, m[1])
		}
	}
	require.Greater(t, found, 50)
}
