// Package testkit fills values for tests, and says how much tests do. Fill sets every field of a value. The rest says
// how much the tests do that could go on for ever: how many places they cut a history at, how many bits they flip, how
// many schedules and random histories they try, and how long they wait for what should happen.
//
// There are three sizes. go test takes seconds for most packages and finds what a
// change is likely to break. TURNSTONE_LONG=1 in the environment runs all of it,
// which takes minutes; .ci/run does. go test -short takes the least, and runs on one
// engine what is the same on all of them. The race detector, which makes every step
// several times slower, takes the least, too, unless TURNSTONE_LONG asks for all.
package testkit

import (
	"os"
	"testing"
	"time"
)

// Long reports whether the tests are to run in full: whether TURNSTONE_LONG is set
// to anything but "" and "0".
func Long() bool {
	v := os.Getenv("TURNSTONE_LONG")
	return v != "" && v != "0"
}

// Pick returns the one of three sizes that a test is to have. It is for tests and
// benchmarks only.
func Pick[T any](long, usual, short T) T {
	switch {
	case Long():
		return long
	case testing.Short() || Race:
		return short
	}
	return usual
}

// Slow skips a test with -short. It is for tests that take about a second or more and
// check what seldom breaks: full disks, lost servers, histories of unusual size. The race detector runs them.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() && !Long() {
		t.Skip("slow: not with -short")
	}
}

// Seldom skips a test unless the tests run in full. It is for tests that take many seconds and check what hardly any
// change can break.
func Seldom(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skip("many seconds: with TURNSTONE_LONG=1")
	}
}

// OneGoroutine skips a test under the race detector that has one goroutine and much to do: there is nothing to find,
// and each step takes several times as long.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("one goroutine: there is nothing for the race detector")
	}
}

// Until waits until ok reports true, and ends the test if that has not happened after two minutes. what names what is
// waited for. A test that waits without a limit tells nothing of its failure: it is ended with all others of its
// package.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("two minutes without this: %s", what)
		}
	}
}
