package importer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A grower imports a file again and again, as follow does.
type grower struct {
	t     *testing.T
	st    *turnstone.Store
	clock *importer.Clock
	tails *importer.Tails // nil to read all of the file each time
	went  int             // on from what was read before
}

func (g *grower) bring(path string) []importer.Result {
	g.t.Helper()
	var convs []importer.Conversation
	var err error
	if g.tails != nil {
		if convs, err = g.tails.Parse(ctx, path); err != nil {
			g.t.Fatal(err)
		}
	}
	if convs == nil {
		data, err := os.ReadFile(path)
		if err != nil {
			g.t.Fatal(err)
		}
		if g.tails != nil {
			convs, _, err = g.tails.ParseWhole(ctx, path, data, nil)
		} else {
			convs, _, err = importer.Parse(ctx, path, data, nil)
		}
		if err != nil {
			g.t.Fatal(err)
		}
	} else {
		g.went++
	}
	results := importer.Load(ctx, g.st, convs, importer.Options{Clock: g.clock})
	if g.tails != nil {
		g.tails.Keep(results)
	}
	return results
}

// claudeLine returns a random line of Claude Code, with ids that other lines have or will have.
func claudeLine(rnd *rand.Rand, i int) string {
	near := func() string { return fmt.Sprint("u", max(0, i+1-rnd.IntN(4)+rnd.IntN(8)/7)) }
	id, parent := fmt.Sprint("u", i), fmt.Sprint("u", i-1)
	if rnd.IntN(4) == 0 {
		parent = near()
	}
	if rnd.IntN(12) == 0 {
		id = near()
	}
	switch rnd.IntN(11) {
	case 9:
		return fmt.Sprintf(`{"type":"user","uuid":%q,"parentUuid":%q,"sessionId":"s1","message":{"role":"user","content":"<command-name>/cost %d</command-name>"}}`, id, parent, i)
	case 10:
		return fmt.Sprintf(`{"type":"user","uuid":%q,"parentUuid":%q,"sessionId":"s1","isMeta":true,"message":{"role":"user","content":"meta %d"}}`, id, parent, i)
	case 0:
		return fmt.Sprintf(`{"type":"summary","summary":"title %d","leafUuid":%q}`, i, near())
	case 1:
		return fmt.Sprintf(`{"type":"progress","uuid":%q,"parentUuid":%q,"sessionId":"s1","data":{}}`, id, parent)
	case 2, 3:
		return fmt.Sprintf(`{"type":"assistant","uuid":%q,"parentUuid":%q,"sessionId":"s1","timestamp":"2025-01-01T10:00:%02dZ","message":{"id":"m%d","model":"cl","content":[{"type":"tool_use","id":"t%d","name":"Read","input":{}}],"usage":{"input_tokens":3,"output_tokens":%d}}}`, id, parent, i%60, i/3, i, i)
	case 4:
		return fmt.Sprintf(`{"type":"user","uuid":%q,"parentUuid":%q,"sessionId":"s1","cwd":"/w%d","gitBranch":"b%d","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"r"}]}}`, id, parent, i, i, max(0, i-rnd.IntN(4)))
	case 5:
		return fmt.Sprintf(`{"type":"new-kind","uuid":%q,"parentUuid":%q,"sessionId":"s1","message":{}}`, id, parent)
	}
	return said(i%60, id, parent)
}

// script returns lines of one of the forms that agents append to, more than the form's sample has.
func script(rnd *rand.Rand) (name string, lines []string) {
	all := maps.Clone(appended)
	for name, c := range samples {
		if strings.HasSuffix(name, ".jsonl") {
			all[name] = strings.Split(strings.TrimSpace(c.data), "\n")
		}
	}
	names := append(slices.Sorted(maps.Keys(all)), "random.jsonl", "random.jsonl", "random.jsonl")
	name = names[rnd.IntN(len(names))]
	for i := range 60 {
		switch sample := all[name]; {
		case sample == nil:
			lines = append(lines, claudeLine(rnd, i))
		case i < len(sample):
			lines = append(lines, sample[i])
		case rnd.IntN(2) == 0: // a line again, as another message
			lines = append(lines, strings.NewReplacer("hi", fmt.Sprint("hi", i), "ho", fmt.Sprint("ho", i), `"u`, fmt.Sprintf(`"u%d`, i)).Replace(sample[rnd.IntN(len(sample))]))
		default:
			lines = append(lines, sample[rnd.IntN(len(sample))])
		}
	}
	return name, lines
}

// An import of new lines gives the same session as an import of the whole file. That is so for broken lines, for files
// that are rewritten, and for sessions that others change.
func TestP20_OfAFileThatHasGrownWhatIsNewIsEnough(t *testing.T) {
	importer.KeepSmallTails()
	went, all := 0, 0
	for seed := range testkit.Pick[uint64](2000, 400, 150) {
		rnd := rand.New(rand.NewPCG(seed, 20))
		name, lines := script(rnd)
		path := filepath.Join(t.TempDir(), name)
		var content []byte
		several := false // sessions were made of the file, and the times of this test don't tell which is the latest one
		growers := []*grower{{t: t, tails: &importer.Tails{}}, {t: t}}
		for _, g := range growers {
			g.st, g.clock = openClocked(t)
		}
		for round := 0; round < 8 && len(lines) > 0 && !several; round++ {
			n := min(1+rnd.IntN(6), len(lines))
			next := file(lines[:n])
			lines = lines[n:]
			switch op := rnd.IntN(24); {
			case op == 0:
				next = string(breakLines(rnd, strings.Split(strings.TrimSpace(next), "\n")))
			case op == 1:
				next = next[:rnd.IntN(len(next))]
			case op == 2 && len(content) > 0:
				content[rnd.IntN(len(content))] = 'x'
			case op == 3:
				content = content[:rnd.IntN(len(content)+1)]
			case op == 4:
				next = strings.ReplaceAll(next, "\n", " \r\n\n")
			case op == 5:
				next = ""
			}
			content = append(content, next...)
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			var said [2]string
			other := rnd.IntN(16)
			for i, g := range growers {
				for _, r := range g.bring(path) {
					said[i] += fmt.Sprintln(r.Session, r.Outcome, r.Commits, r.Nodes, r.Added, r.Err)
				}
				all := map[string]*turnstone.Info{}
				for s, err := range importer.Sessions(ctx, g.st, turnstone.ListOptions{}) {
					if err != nil {
						t.Fatal(err)
					}
					all[s.ID] = s
				}
				for _, id := range slices.Sorted(maps.Keys(all)) {
					s := all[id]
					several = several || len(all) > 1
					said[i] += describe(t, g.st, s.ID) + fmt.Sprintln(s.Usage) + exported(t, g.st, s.ID)
					disturb(t, session(t, g.st, s.ID), other, fmt.Sprint("node ", round))
				}
			}
			if said[0] != said[1] {
				got, want := strings.Split(said[0], "\n"), strings.Split(said[1], "\n")
				i := 0
				for i < min(len(got), len(want))-1 && got[i] == want[i] {
					i++
				}
				t.Fatalf("%s, seed %d, round %d, line %d:\n%s\nwant\n%s\nof\n%s", name, seed, round, i, got[i], want[i], content)
			}
			all++
		}
		went += growers[0].went
		verify(t, growers[0].st)
	}
	if went*3 < all {
		t.Errorf("%d of %d imports went on from what was read before", went, all)
	}
}

// disturb changes a session as other processes do, if other says so.
func disturb(t *testing.T, s *turnstone.Session, other int, payload string) {
	t.Helper()
	var err error
	switch other {
	case 0:
		_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(payload)}}})
	case 1:
		err = s.SaveMetadata(ctx, head.Metadata{Name: payload, Labels: map[string]string{"rating": "good"}})
	case 2:
		err = s.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A tombstone is no revision, so an import of new lines does not see it. The node does not come back.
func TestP20_WhatWasTombstonedDoesNotComeBackWhenItsFileGrows(t *testing.T) {
	importer.KeepSmallTails()
	for name, all := range appended {
		for dead := range 4 {
			g := &grower{t: t, tails: &importer.Tails{}}
			g.st, g.clock = openClocked(t)
			path := filepath.Join(t.TempDir(), name)
			for n := 4; n <= len(all); n++ {
				if err := os.WriteFile(path, []byte(file(all[:n])), 0o600); err != nil {
					t.Fatal(err)
				}
				r := g.bring(path)[0]
				s := session(t, g.st, r.Session)
				if r.Err != nil || n > 4 && r.Added != 1 {
					t.Fatalf("%s without node %d, %d lines: %+v", name, dead, n, r)
				}
				if n == 4 {
					if err := s.Tombstone(ctx, loaded(t, s, turnstone.Scope{Full: true}).Nodes[dead].ID); err != nil {
						t.Fatal(err)
					}
				}
				got, want := payloads(loaded(t, s, turnstone.Scope{Full: true}).Nodes), slices.Delete(slices.Clone(all[:n]), dead, dead+1)
				if !slices.Equal(got, want) {
					t.Fatalf("%s without node %d:\n%s", name, dead, strings.Join(got, "\n"))
				}
			}
			if g.went != len(all)-4 {
				t.Errorf("%s: %d imports went on", name, g.went)
			}
			verify(t, g.st)
		}
	}
}

// Whatever bytes a file has and gets, an import of the new lines has the same result as one of the whole file.
func FuzzTail(f *testing.F) {
	importer.KeepSmallTails()
	for name, all := range appended {
		f.Add(name, []byte(file(all[:3])), []byte(file(all[3:])))
	}
	for name, c := range samples {
		if lines := strings.SplitAfter(c.data, "\n"); strings.HasSuffix(name, ".jsonl") {
			f.Add(name, []byte(strings.Join(lines[:2], "")), []byte(strings.Join(lines[2:], "")))
		}
	}
	f.Fuzz(func(t *testing.T, name string, before, more []byte) {
		if len(before)+len(more) > 1<<14 || strings.ContainsAny(name, "/\x00") || len(name) > 200 {
			return
		}
		path := filepath.Join(t.TempDir(), "x"+name)
		var said [2]string
		for i, tails := range []*importer.Tails{{}, nil} {
			g := &grower{t: t, tails: tails}
			g.st, g.clock = openClocked(t)
			for _, content := range [][]byte{before, slices.Concat(before, more)} {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				for _, r := range g.bring(path) {
					if said[i] += fmt.Sprintln(r.Session, r.Outcome, r.Commits, r.Nodes, r.Added, r.Err); r.Err == nil {
						said[i] += describe(t, g.st, r.Session) + exported(t, g.st, r.Session)
					}
				}
			}
		}
		if said[0] != said[1] {
			t.Errorf("%s\nwant\n%s", said[0], said[1])
		}
	})
}
