package servertest_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// sideBySide is how many tests run at the same time unless -parallel says
// otherwise. Most of them wait for a clock or a server, so the default of go
// test, the number of cores, would leave the cores idle.
const sideBySide = "4"

// TestMain fails the package if a goroutine outlives the tests.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", sideBySide); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit))
}
