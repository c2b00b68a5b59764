package importer_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestAFileThatWasTornOrHasGrownGivesTheSameSession(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want := describe(t, st, id)
		if got := exported(t, st, id); got != file(all) {
			t.Errorf("%s is exported as\n%s", name, got)
		}
		for n := 1; n < len(all); n++ {
			for _, torn := range []string{"", "\n", "\n" + all[n][:len(all[n])/2], "\n" + all[n]} {
				st, clock := openClocked(t)
				bring(t, st, clock, name, strings.Join(all[:n], "\n")+torn)
				r := bring(t, st, clock, name, file(all))
				if r.Session != id || r.Outcome == importer.Imported || r.Outcome == importer.Failed {
					t.Fatalf("%s after %d lines and %q: %+v", name, n, torn, r)
				}
				if got := describe(t, st, id); got != want {
					t.Fatalf("%s after %d lines and %q:\n%s\nwant\n%s", name, n, torn, got, want)
				}
				if got := exported(t, st, id); got != file(all) {
					t.Errorf("%s after %d lines and %q is exported as\n%s", name, n, torn, got)
				}
				if r := bring(t, st, clock, name, file(all)); r.Outcome != importer.Unchanged || r.Commits != 0 {
					t.Errorf("%s again: %+v", name, r)
				}
				// An older snapshot changes nothing.
				if r := bring(t, st, clock, name, file(all[:n])); r.Outcome != importer.Unchanged || describe(t, st, id) != want {
					t.Errorf("%s, the first %d lines: %+v", name, n, r)
				}
				verify(t, st)
			}
		}
		// The file grows line by line, as an agent writes it.
		st, clock = openClocked(t)
		for n := range all {
			bring(t, st, clock, name, file(all[:n+1]))
		}
		if got := describe(t, st, id); got != want {
			t.Errorf("%s line by line:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// Whatever happens to a file between imports, the session reads as if the last version of
// the file had been imported once. The exception is a file whose last lines are missing,
// which is taken for an older snapshot.
func TestAnyHistoryOfAFileGivesTheSessionOfTheFile(t *testing.T) {
	for name, all := range appended {
		for seed := range testkit.Pick[uint64](60, 40, 8) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			st, clock := openClocked(t)
			files := map[string][]string{} // by session, because a file may begin anew
			for version := range 6 {
				lines := slices.Clone(all[:1+rnd.IntN(len(all))])
				for range rnd.IntN(4) {
					at := rnd.IntN(len(lines))
					switch op := rnd.IntN(3); {
					case op == 0 && len(lines) > 1 && (at > 0 || name != "pi.jsonl"):
						lines = slices.Delete(lines, at, at+1)
					case op == 1:
						lines[at] = strings.Replace(lines[at], `"content":"`, fmt.Sprintf(`"content":"%d `, rnd.IntN(3)), 1)
					case op == 2 && name == "plain.jsonl":
						lines = slices.Insert(lines, at, lines[rnd.IntN(len(lines))])
					}
				}
				if name == "claude.jsonl" && !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "sessionId") }) {
					continue // the session can't be known
				}
				r := bring(t, st, clock, name, file(lines))
				id, have := r.Session, files[r.Session]
				if !(len(lines) < len(have) && slices.Equal(lines, have[:len(lines)])) {
					have = lines
				}
				files[id] = have
				fresh, clock := openClocked(t)
				other := bring(t, fresh, clock, name, file(have)).Session
				got := describePath(t, st, id)
				want := describePath(t, fresh, other)
				if withoutKeys(got) != withoutKeys(want) {
					t.Fatalf("%s, seed %d, version %d:\n%s\nwant\n%s", name, seed, version, got, want)
				}
				if got := exported(t, st, id); got != file(have) {
					t.Fatalf("%s, seed %d, version %d is exported as\n%s\nwant\n%s", name, seed, version, got, file(have))
				}
				if r := bring(t, st, clock, name, file(have)); r.Outcome != importer.Unchanged {
					t.Fatalf("%s, seed %d, version %d again: %+v", name, seed, version, r)
				}
			}
			verify(t, st)
		}
	}
}

// Claude Code sometimes writes a line before its parent. An import of a file that was cut
// between the two, and then of the whole file, gives the path and the export of the whole
// file.
func TestALineBeforeItsParentIsMendedWhenTheFileGrows(t *testing.T) {
	all := strings.Split(strings.TrimSpace(claude), "\n")[:7]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "claude.jsonl", file(all)).Session
	want := describePath(t, st, id)
	for n := 2; n < len(all); n++ {
		st, clock := openClocked(t)
		bring(t, st, clock, "claude.jsonl", file(all[:n]))
		bring(t, st, clock, "claude.jsonl", file(all))
		got := describePath(t, st, id)
		if withoutKeys(got) != withoutKeys(want) {
			t.Errorf("after %d lines:\n%s\nwant\n%s", n, got, want)
		}
		if got := exported(t, st, id); got != file(all) {
			t.Errorf("after %d lines it is exported as\n%s", n, got)
		}
		verify(t, st)
	}
}

// Forks and sub-agents in a file grow with it, each as a session of its own.
func TestForksAndSubAgentsGrowWithTheirFile(t *testing.T) {
	all := strings.Split(strings.TrimSpace(claude), "\n")
	all = append(all, `{"type":"user","uuid":"i","parentUuid":"h","sessionId":"c2","message":{"role":"user","content":"more of the fork"}}`,
		`{"type":"user","uuid":"j","parentUuid":"g","sessionId":"c1","agentId":"ag","isSidechain":true,"message":{"role":"user","content":"more of the agent"}}`)
	ids := []string{"c1", "c1/ag", "c2"}
	read := func(st *turnstone.Store) (out string) {
		for _, id := range ids {
			i := infoOf(t, session(t, st, id))
			out += fmt.Sprintln(id, i.Parent, i.Detached, i.ForkNode.IsZero(), i.Usage) + withoutKeys(describePath(t, st, id))
		}
		return out
	}
	st, clock := openClocked(t)
	bringAll(t, st, clock, "claude.jsonl", file(all))
	want := read(st)
	for n := 2; n < len(all); n++ {
		st, clock := openClocked(t)
		bringAll(t, st, clock, "claude.jsonl", file(all[:n])+all[n][:10])
		bringAll(t, st, clock, "claude.jsonl", file(all))
		if got := read(st); got != want {
			t.Errorf("after %d lines:\n%s\nwant\n%s", n, got, want)
		}
		page, err := st.List(ctx, turnstone.ListOptions{})
		if err != nil || len(page.Sessions) != len(ids) {
			t.Errorf("after %d lines: %d sessions, %v", n, len(page.Sessions), err)
		}
		verify(t, st)
	}
}

// If an import ends at any commit, the next import completes it.
func TestAnImportThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want := describe(t, st, id)
		for cutOff := range 16 {
			before, refused := cutOff%2*2, cutOff/2 // lines that were imported before
			st, clock, stopped := stopping(t, refused)
			if before > 0 {
				bring(t, st, clock, name, file(all[:before]))
			}
			importer.Load(stopped(), st, parse(t, name, file(all)), importer.Options{Clock: clock, BySteps: true})
			bring(t, st, clock, name, file(all))
			if got := describe(t, st, id); got != want {
				t.Errorf("%s after %d lines, cut off at commit %d:\n%s\nwant\n%s", name, before, refused, got, want)
			}
			verify(t, st)
		}
	}
}

// Every revision is a turn: the path at it ends where the turn did.
func TestEveryRevisionIsATurn(t *testing.T) {
	all := appended["plain.jsonl"]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "plain.jsonl", file(all[:5])).Session
	bring(t, st, clock, "plain.jsonl", file(all))
	s := session(t, st, id)
	for at, want := range []int{3, 5, 6} {
		state, err := s.Load(ctx, turnstone.Scope{At: head.Revision(at + 1)})
		if err != nil || len(state.Nodes) != want {
			t.Errorf("revision %d has %d nodes, %v", at+1, len(state.Nodes), err)
		}
	}
}

// Real sessions are cut where an agent might be while it writes, and imported as they
// grow.
func TestRealFilesGrow(t *testing.T) {
	testkit.Slow(t)
	dir := corpus(t)
	for _, name := range []string{"claude-worktrees-ef958aa1.jsonl.gz", "claude-ccl-37f83ec9.jsonl.gz", "claude-ccl-12a546d1.jsonl.gz", "pi-before-compaction.jsonl.gz"} {
		data := read(t, filepath.Join(dir, name))
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, string(data)).Session
		want := describe(t, st, id)
		st, clock = openClocked(t)
		for _, part := range []int{30, 61, 100} {
			bring(t, st, clock, name, string(data[:len(data)*part/100]))
		}
		if got := describe(t, st, id); got != want {
			g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
			for i := range w {
				if i >= len(g) || g[i] != w[i] {
					t.Errorf("%s: line %d is\n%.300s\nwant\n%.300s", name, i, g[min(i, len(g)-1)], w[i])
					break
				}
			}
		}
		if got := exported(t, st, id); got != string(data) {
			t.Errorf("%s is exported as other bytes", name)
		}
		verify(t, st)
	}
}
