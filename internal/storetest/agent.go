package storetest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// variable names the store of an agent's process.
const variable = "TURNSTONE_TEST_AGENT"

// Main runs the tests of an adapter. In a process that Kill has started it runs the agent instead, which prints a
// line when it has done something.
func Main(m *testing.M, agent func(store turnstone.Factory) error) int {
	url := os.Getenv(variable)
	if url == "" {
		return pgtest.Main(m)
	}
	e, err := open.Open(context.Background(), url, nil)
	if err == nil {
		var st *turnstone.Store
		if st, err = turnstone.Open(context.Background(), e, nil); err == nil {
			err = agent(st.Factory())
		}
	}
	fmt.Fprintln(os.Stderr, "the agent has ended:", err)
	return 1
}

// Kill runs the agent on the store of a URL in a process of its own, kills the process when it has printed so many
// lines, and returns all that it has printed.
func Kill(t *testing.T, url string, after int) (lines []string) {
	t.Helper()
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), variable+"="+url)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewScanner(out); in.Scan(); {
		if lines = append(lines, in.Text()); len(lines) == after {
			if err := p.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = p.Wait() // It was killed.
	if len(lines) < after {
		t.Fatalf("the agent has printed %d lines of %d", len(lines), after)
	}
	return lines
}

// Verify fails the test if Store.Verify finds damage.
func Verify(t *testing.T, st *turnstone.Store) {
	t.Helper()
	r, err := st.Verify(context.Background(), turnstone.VerifyOptions{})
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
