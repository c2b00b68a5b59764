package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// The test binary is the command when this is set: the demo starts itself.
func TestMain(m *testing.M) {
	if os.Getenv("TURNSTONE_TEST_COMMAND") != "" {
		main()
		return
	}
	if name := os.Getenv(workerVariable); name != "" {
		if err := runWorker(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for the processes that the tests start
	os.Exit(pgtest.Main(m))
}

// turnstoneCmd runs the command as a process.
func turnstoneCmd(t *testing.T, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String(), errs.String(), err == nil
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, ok := turnstoneCmd(t, args...)
	if !ok {
		t.Fatalf("%v: %s\n%s", args, errs, out)
	}
	return out
}

// refused fails the test unless a command ends with an exit code and says something.
func refused(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != code || !strings.Contains(string(out), want) {
		t.Errorf("%v: exit code %d, %s", args, cmd.ProcessState.ExitCode(), out)
	}
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDemo(t *testing.T) {
	for name, url := range storetest.URLs {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "pebble" {
				t.Skip("-short: on the default engine alone")
			}
			if name == "memory" {
				t.Skip("the demo kills a process and reads what is left")
			}
			demo(t, url(t))
		})
	}
}

func demo(t *testing.T, store string) {
	out := must(t, "demo", "--store", store)
	for _, want := range []string{"lost the compare-and-swap", "Forked", "Rewound", "SIGKILL", "Reopened", "Tombstoned", "Erased", "Verified", "explore"} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	for _, args := range [][]string{{"sessions"}, {"show", "trip"}, {"show", "trip", "--full"}, {"show", "trip/train"}, {"export", "trip"}, {"verify"}, {"stats"}, {"gc"}, {"vacuum"}} {
		must(t, append(args, "--store", store)...)
	}
	if out := must(t, "show", "trip", "--full", "--store", store); strings.Contains(out, "4000 0000") {
		t.Error("the tombstoned card number is shown")
	}
	if _, errs, ok := turnstoneCmd(t, "demo", "--store", store); ok || !strings.Contains(errs, "not empty") {
		t.Errorf("a second demo on the same store: %s", errs)
	}
}

const lines = `{"role":"user","content":"hello \u001b[31mred"}
{"role": "assistant",  "content":"hi"}
{"role":"user","content":"more"}
`

func TestImportShowExport(t *testing.T) {
	store, file := t.TempDir()+"/store", write(t, "chat.jsonl", lines)
	if out := must(t, "import", "--dry-run", file, "--store", store); !strings.Contains(out, "would import") {
		t.Error(out)
	}
	if _, err := os.Stat(store); err == nil {
		t.Error("a dry run made a store")
	}
	if out := must(t, "import", file, "--store", store); !strings.Contains(out, "imported") {
		t.Error(out)
	}
	if out := must(t, "import", file, "--store", store); !strings.Contains(out, "unchanged") {
		t.Error(out)
	}
	if out := must(t, "export", "chat", "--store", store); out != lines {
		t.Errorf("exported %q", out)
	}
	to := filepath.Join(t.TempDir(), "out.jsonl")
	must(t, "export", "chat", "-o", to, "--store", store)
	if data, err := os.ReadFile(to); err != nil || string(data) != lines {
		t.Errorf("exported %q, %v", data, err)
	}
	out := must(t, "show", "chat", "--store", store)
	if strings.Contains(out, "\x1b") || !strings.Contains(out, "hello ␛[31mred") || !strings.Contains(out, "revision 2") {
		t.Errorf("%q", out)
	}
	if out := must(t, "sessions", "--store", store); !strings.Contains(out, "chat") || strings.Contains(out, "\x1b") {
		t.Error(out)
	}
	if out := must(t, "verify", "--store", store); !strings.Contains(out, "is right") {
		t.Error(out)
	}
	if out := must(t, "upgrade", "--store", store); !strings.Contains(out, "has the newest format") {
		t.Error(out)
	}
	if out := must(t, "stats", "--store", store); !strings.Contains(out, "nodes        3") || !strings.Contains(out, "format       1") || !strings.Contains(out, "on disk") {
		t.Error(out)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	store := t.TempDir() + "/store"
	good, bad := write(t, "good.jsonl", lines), write(t, "bad.jsonl", "{broken\n")
	check := func(want string, args ...string) {
		t.Helper()
		if out, errs, ok := turnstoneCmd(t, append(args, "--store", store)...); ok || !strings.Contains(errs, want) {
			t.Errorf("%v: %q\n%s", args, errs, out)
		}
	}
	check("no store at", "sessions")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	check("no store at", "stats")
	if entries, err := os.ReadDir(store); err != nil || len(entries) > 0 {
		t.Errorf("a look made %v, %v", entries, err)
	}
	check("bad.jsonl:1: unknown format", "import", bad)
	check("no store at", "verify") // nothing was imported
	check("no such file", "import", "missing.json")
	check("--by must be turn or step", "import", "--by", "day", good)
	check("--as needs exactly one file", "import", "--as", "x", good, good)
	check("--yes needs --replace", "import", "--yes", good)
	check("1 place can't be read, the rest was imported", "import", good, bad)
	check("not found", "show", "nobody")
	if _, errs, ok := turnstoneCmd(t, "sessions", "--store", "badger:"+store); ok || !strings.Contains(errs, "use pebble:") {
		t.Errorf("a Pebble store opened as Badger: %s", errs)
	}
	e, err := pebble.Open(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	check("in use by pid", "sessions", "--wait", "50ms")
}

func TestVerifyFailsOnDamage(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	e, err := pebble.Open(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := turnstone.Open(context.Background(), e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Vacuum(context.Background()), st.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	// Flip one bit in the middle of a table.
	tables, err := filepath.Glob(store + "/*.sst")
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	noticed := 0
	for _, at := range []float64{0.1, 0.3, 0.5, 0.7} {
		data, err := os.ReadFile(tables[0])
		if err != nil {
			t.Fatal(err)
		}
		i := int(at * float64(len(data)))
		data[i] ^= 4
		if err := os.WriteFile(tables[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := turnstoneCmd(t, "verify", "--store", store); !ok {
			noticed++
		}
		data[i] ^= 4
		if err := os.WriteFile(tables[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if noticed != 4 {
		t.Errorf("verify noticed %d of four flipped bits", noticed)
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"short":               "short",
		"one two three four":  "one two|three four",
		"abcdefghijklmnopqrs": "abcdefghij|klmnopqrs",
		"a\n\nb\n":            "a||b",
	} {
		if got := strings.Join(wrap(text, 10), "|"); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 1_500_000: "1.5 MB", 999_999: "1 MB", 5_000_000_000_000_000: "5e+03 TB"} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestMaintenance(t *testing.T) {
	testkit.Slow(t)
	store := t.TempDir() + "/store"
	run := func(args ...string) string {
		t.Helper()
		return must(t, append(args, "--store", store)...)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if _, errs, ok := turnstoneCmd(t, append(args, "--store", store)...); ok || !strings.Contains(errs, want) {
			t.Errorf("%v: %q", args, errs)
		}
	}
	contains := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in:\n%s", w, out)
			}
		}
	}
	refused("no store", "gc")
	run("import", write(t, "chat.jsonl", lines), write(t, "other.jsonl", lines))
	contains(run("gc", "--dry-run"), "to delete  0 blobs", "roots      2")
	contains(run("gc", "--full"), "index      was right")
	contains(run("gc", "--session", "chat"), "retained")
	refused("not found", "gc", "--session", "none")
	run("keep", "chat", "first", "--revision", "1")
	contains(run("keep", "chat"), "1  first")
	contains(run("prune", "--last", "1", "--older", "30d", "--dry-run"), "would prune", "of 2 sessions")
	contains(run("prune", "--last", "1"), "pruned ", "of 2 sessions")
	refused("confirm with --yes", "prune", "--inactive", "90d")
	refused("say what to let go of", "prune")
	refused("such as 36h", "prune", "--older", "0d")
	refused("goes with --set alone", "prune", "--session", "chat", "--last", "1", "--dry-run")
	contains(run("prune", "--inactive", "90d", "--yes"), "pruned 0 revisions of 0 sessions")
	contains(run("prune", "--most", "1B", "--dry-run"), "would delete chat\n", "would delete 2 sessions with ")
	contains(run("prune", "--most", "1B", "--dry-run", "--json"), `"deleted":["`)
	run("keep", "chat", "first", "--release")
	run("prune", "--session", "chat", "--last", "1", "--set")
	refused("--session", "prune", "--set")
	refused("--yes", "erase", "chat")
	refused("keep, refuse or cascade", "erase", "chat", "--children", "none", "--yes")
	refused("node not found", "erase", "chat", "zz", "--yes")
	node := strings.Fields(strings.SplitN(run("show", "chat"), "\n\n", 2)[1])[0]
	contains(run("erase", "chat", node, "--yes"), "content of 1 node", "on disk")
	if out := run("show", "chat"); strings.Contains(out, node) {
		t.Errorf("the erased node is shown:\n%s", out)
	}
	contains(run("erase", "other", "--yes", "--json"), `"removed":1`, `"heldBy":[]`)
	contains(run("vacuum", "--json"), `"nodes":0,"records":0,"removed":0`)
	contains(run("vacuum"), "content of 0 nodes")
	contains(run("verify"), "is right")
}
