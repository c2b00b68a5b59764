//go:build linux || darwin

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
)

// A misfortune is what happens to a store before the lines of docs/operations.md get it back, and how to tell that they
// have.
type misfortune struct {
	happens func(w *world)
	check   func(w *world)
	flags   []string // of every command
	fails   string   // the command that ends with an exit code, because something is lost
}

// A world is a directory with a store and its backup.
type world struct {
	*testing.T
	dir    string
	before map[string]string // the sessions when the backup was made
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// with calls f with a store of the world.
func (w *world) with(name string, f func(ctx context.Context, st *turnstone.Store)) {
	w.Helper()
	writing(w.T, w.path(name), f)
}

// say commits a message to sessions.
func (w *world) say(text string, ids ...string) {
	w.Helper()
	w.with("turnstone-data", func(ctx context.Context, st *turnstone.Store) {
		for _, id := range ids {
			s, _, err := st.Create(ctx, turnstone.Request{ID: id})
			if err == nil {
				_, err = s.Commit(ctx, turnstone.Commit{
					Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}, Checkpoint: map[string][]byte{"p": []byte(text)},
				})
			}
			if err != nil {
				w.Fatal(err)
			}
		}
	})
}

// sessions returns what the sessions of a store say.
func (w *world) sessions(name string) map[string]string {
	w.Helper()
	out := map[string]string{}
	w.with(name, func(ctx context.Context, st *turnstone.Store) {
		page, err := st.List(ctx, turnstone.ListOptions{Limit: turnstone.MaxPage})
		if err != nil {
			w.Fatal(err)
		}
		for i := range page.Sessions {
			id := page.Sessions[i].ID
			s, err := st.Session(ctx, id)
			if err != nil {
				w.Fatal(err)
			}
			state, err := s.Load(ctx, turnstone.Scope{})
			if err != nil {
				w.Fatal(err)
			}
			for _, n := range state.Nodes {
				out[id] += string(n.Payload) + ";"
			}
		}
	})
	return out
}

// same fails the test unless a store has the sessions.
func (w *world) same(name string, want map[string]string) {
	w.Helper()
	if got := w.sessions(name); fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("got %v, want %v", got, want)
	}
}

var misfortunes = map[string]misfortune{
	"One session is spoilt": {
		happens: func(w *world) { w.say("nonsense", "trip") },
		check: func(w *world) {
			want := map[string]string{"trip": w.before["trip"], "trip/spoilt": w.before["trip"] + "nonsense;", "old": w.before["old"], "chat": w.before["chat"]}
			w.same("turnstone-data", want)
		},
	},
	"A bad release has written to many": {
		happens: func(w *world) {
			w.say("nonsense", "trip", "chat", "new")
			w.backUp()
		},
		check: func(w *world) { w.same("before", w.before) },
	},
	"The disk is lost": {
		happens: func(w *world) {
			if err := os.RemoveAll(w.path("turnstone-data")); err != nil {
				w.Fatal(err)
			}
		},
		check: func(w *world) { w.same("turnstone-data", w.before) },
	},
	"The disk is full": {
		happens: func(w *world) {
			out, errs, ok := w.run("rewind", "trip", "--empty", "--min-free", "1000000GiB")
			if ok || !strings.Contains(errs, "no space") {
				w.Fatal(out, errs)
			}
		},
		flags: []string{"--min-free", "1000000GiB"},
		check: func(w *world) {
			delete(w.before, "old")
			w.same("turnstone-data", w.before)
		},
	},
	"It says corrupt, missing, or files damaged": {
		happens: func(w *world) {
			w.say("more", "trip", "chat")
			manifests, _ := filepath.Glob(w.path("turnstone-data/MANIFEST-*"))
			for _, name := range manifests {
				if err := os.Remove(name); err != nil {
					w.Fatal(err)
				}
			}
			if _, errs, ok := w.run("sessions"); ok || !strings.Contains(errs, "files damaged") {
				w.Fatal(errs)
			}
		},
		fails: "recover",
		check: func(w *world) {
			for _, id := range []string{"trip", "chat"} {
				w.before[id] += "more;"
			}
			w.same("new", w.before)
		},
	},
	"The store moves to another machine": {
		happens: func(*world) {},
		check:   func(w *world) { w.same("elsewhere", w.before) },
	},
}

// backUp makes a backup, and returns when it had ended.
func (w *world) backUp() time.Time {
	w.Helper()
	w.with("turnstone-data", func(ctx context.Context, st *turnstone.Store) {
		if _, err := backup.Run(ctx, st, backup.Directory(w.path("safe")), backup.Options{}); err != nil {
			w.Fatal(err)
		}
	})
	return time.Now()
}

func (w *world) run(args ...string) (stdout, stderr string, ok bool) {
	w.Helper()
	w.Chdir(w.dir)
	return turnstoneCmd(w.T, args...)
}

// The lines of docs/operations.md get back what they say.
func TestGB1_TheLinesOfOperationsGetBack(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## When something goes wrong\n")
	part, _, _ := strings.Cut(rest, "\n## ")
	sections := strings.Split(part, "\n### ")[1:]
	if len(sections) != len(misfortunes) {
		t.Errorf("%d sections, %d misfortunes", len(sections), len(misfortunes))
	}
	for _, section := range sections {
		title, body, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			m, known := misfortunes[title]
			_, block, found := strings.Cut(body, "```console\n")
			lines, _, _ := strings.Cut(block, "```")
			if !known || !found {
				t.Fatal("there are no lines, or nothing that happens")
			}
			w := &world{T: t, dir: t.TempDir()}
			w.say("hello", "trip", "chat", "old")
			w.say("and more", "trip")
			w.before = w.sessions("turnstone-data")
			at := w.backUp()
			time.Sleep(10 * time.Millisecond)
			m.happens(w)
			for line := range strings.Lines(lines) {
				line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
				line = strings.ReplaceAll(line, "2026-04-01 09:30:00", at.UTC().Format(time.RFC3339Nano))
				args, err := split(line)
				if err != nil || args[0] != "turnstone" {
					t.Fatal(line, err)
				}
				out, errs, ok := w.run(append(args[1:], m.flags...)...)
				if ok == (m.fails == args[1]) {
					t.Fatalf("%s: %s%s", line, out, errs)
				}
			}
			m.check(w)
		})
	}
}

func TestVF10_TheCommandNotesWhatItDoes(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	for _, args := range [][]string{{"gc", "--dry-run"}, {"prune", "--last", "1", "--dry-run"}} {
		must(t, append(args, "--store", store)...)
	}
	if out := must(t, "stats", "--store", store); strings.Contains(out, "took") {
		t.Error(out)
	}
	for _, args := range [][]string{{"gc"}, {"vacuum"}, {"prune", "--last", "1"}, {"verify"}, {"backup", t.TempDir() + "/backup"}} {
		must(t, append(args, "--store", store)...)
		if out := must(t, "stats", "--store", store); !regexp.MustCompile(`(?m)^` + args[0] + ` +2\d\d\d-.*, took `).MatchString(out) {
			t.Errorf("%v: %s", args, out)
		}
	}
	if out := must(t, "stats", "--store", store, "--json"); !strings.Contains(out, `"maintenance":[{"operation":"`) {
		t.Error(out)
	}
}
