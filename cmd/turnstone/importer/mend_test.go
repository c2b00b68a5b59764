package importer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// said returns line i of a conversation of Claude Code, which names its parent.
func said(i int, id, parent string) string {
	who, content := "user", fmt.Sprintf(`{"role":"user","content":"text %d"}`, i)
	if i%2 == 1 {
		who, content = "assistant", fmt.Sprintf(`{"id":"m%d","model":"cl","content":[{"type":"text","text":"text %d"}],"usage":{"input_tokens":1}}`, i, i)
	}
	if parent != "null" {
		parent = `"` + parent + `"`
	}
	return fmt.Sprintf(`{"parentUuid":%s,"sessionId":"s1","type":%q,"uuid":%q,"timestamp":"2026-01-01T10:00:%02dZ","message":%s}`, parent, who, id, i, content)
}

// chain returns n lines, of which each names the one before it.
func chain(n int) []string {
	out := []string{said(0, "u0", "null")}
	for i := 1; i < n; i++ {
		out = append(out, said(i, fmt.Sprint("u", i), fmt.Sprint("u", i-1)))
	}
	return out
}

// texts returns the texts of the nodes that are not bookkeeping.
func texts(nodes []turnstone.Node) (out []string) {
	for _, n := range nodes {
		if n.Kind == "user" || n.Kind == "assistant" {
			out = append(out, importer.Text(n.Payload))
		}
	}
	return out
}

// Each of these files has all of its lines in the session, in the order of the file, on the path. The import says
// what it mended.
func TestP13_BrokenParentsHideNothingAndAreCounted(t *testing.T) {
	const n = 10
	with := func(change func(l []string) []string) []string { return change(chain(n)) }
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"whole":       {chain(n), "map[]"},
		"own parent":  {with(func(l []string) []string { l[5] = said(5, "u5", "u5"); return l }), "map[line that is its own parent:1]"},
		"ring":        {with(func(l []string) []string { l[3] = said(3, "u3", "u7"); return l }), "map[ring of parents:1]"},
		"no parent":   {with(func(l []string) []string { l[4], l[7] = said(4, "u4", "x"), said(7, "u7", "y"); return l }), "map[parent that is not here:2]"},
		"first":       {with(func(l []string) []string { l[0] = said(0, "u0", "x"); return l }), "map[parent that is not here:1]"},
		"child first": {with(func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }), "map[]"},
		"same id":     {with(func(l []string) []string { l[6], l[7] = said(6, "u2", "u5"), said(7, "u7", "u2"); return l }), "map[id of two lines:1]"},
		"repeated":    {with(func(l []string) []string { return append(l, l[2], l[3]) }), "map[repeated line:2]"},
		"compaction": {with(func(l []string) []string {
			b := `{"type":"system","subtype":"compact_boundary","uuid":"cb","parentUuid":null,"logicalParentUuid":"u4","sessionId":"s1","content":"Conversation compacted"}`
			l[5] = said(5, "u5", "cb")
			return slices.Insert(l, 5, b)
		}), "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			st, clock := openClocked(t)
			r := bring(t, st, clock, "s.jsonl", file(c.lines))
			if got := fmt.Sprint(r.Conversation.Mended); got != c.want {
				t.Errorf("mended %s, want %s", got, c.want)
			}
			var want []string
			for i := range n {
				want = append(want, fmt.Sprint("text ", i))
			}
			if got := texts(loaded(t, session(t, st, r.Session), turnstone.Scope{}).Nodes); !slices.Equal(got, want) {
				t.Errorf("the path is %q", got)
			}
			if got := exported(t, st, r.Session); got != file(c.lines) {
				t.Errorf("exported is\n%s", got)
			}
			if r := bring(t, st, clock, "s.jsonl", file(c.lines)); r.Outcome != importer.Unchanged {
				t.Errorf("again: %+v", r)
			}
		})
	}
}

func TestP13_TwoSessionsThatBeginInEachOtherAreBothImported(t *testing.T) {
	a, b := chain(4), chain(4)
	for i := range b {
		b[i] = strings.NewReplacer(`uid":"u`, `uid":"v`, `"s1"`, `"s2"`).Replace(b[i])
	}
	b[0] = strings.Replace(b[0], `"parentUuid":null`, `"parentUuid":"u3"`, 1)
	a[0] = strings.Replace(a[0], `"parentUuid":null`, `"parentUuid":"v3"`, 1)
	st, clock := openClocked(t)
	nodes := 0
	for _, r := range bringAll(t, st, clock, "both.jsonl", file(append(a, b...))) {
		nodes += len(loaded(t, session(t, st, r.Session), turnstone.Scope{}).Nodes)
	}
	if nodes != 4+8 { // one of them goes on from the other
		t.Errorf("%d nodes on the paths", nodes)
	}
}

// What a crash or two writers left of lines.
func TestP14_WhatCanBeReadOfALineIsAndTheRestIsKept(t *testing.T) {
	l := chain(6)
	for name, c := range map[string]struct{ data, mended, texts string }{
		"torn in the middle":   {file(l[:2]) + l[2][:50] + "\n" + file(l[3:]), "map[parent that is not here:1 unreadable line:1]", "0 1 3 4 5"},
		"torn, then whole":     {file(l[:2]) + l[2][:80] + l[2] + "\n" + file(l[3:]), "map[unreadable line:1]", "0 1 2 3 4 5"},
		"two on a line":        {file(l[:2]) + l[2] + l[3] + "\n" + file(l[4:]), "map[two objects on a line:1]", "0 1 2 3 4 5"},
		"not finished":         {file(l[:5]) + l[5][:90], "map[unfinished last line:1]", "0 1 2 3 4"},
		"finished, no newline": {strings.TrimSuffix(file(l), "\n"), "map[]", "0 1 2 3 4 5"},
		"zeros at the end":     {file(l) + "\x00\x00\x00", "map[unfinished last line:1]", "0 1 2 3 4 5"},
		"zeros in the middle":  {file(l[:2]) + strings.Repeat("\x00", 4000) + file(l[2:]), "map[unreadable line:1]", "0 1 2 3 4 5"},
		"zeros at the start":   {strings.Repeat("\x00", 9000) + file(l), "map[unreadable line:1]", "0 1 2 3 4 5"},
		"CRLF and BOM":         {"\ufeff" + strings.ReplaceAll(file(l), "\n", "\r\n"), "map[]", "0 1 2 3 4 5"},
		"a number":             {file(l[:3]) + "7\n" + file(l[3:]), "map[unreadable line:1]", "0 1 2 3 4 5"},
		"not UTF-8":            {strings.ReplaceAll(file(l), "text 3", "text 3\xff"), "map[]", "0 1 2 3\ufffd 4 5"},
	} {
		t.Run(name, func(t *testing.T) {
			st, clock := openClocked(t)
			r := bring(t, st, clock, "s.jsonl", c.data)
			if got := fmt.Sprint(r.Conversation.Mended); got != c.mended {
				t.Errorf("mended %s, want %s", got, c.mended)
			}
			got := strings.ReplaceAll(strings.Join(texts(loaded(t, session(t, st, r.Session), turnstone.Scope{}).Nodes), " "), "text ", "")
			if got != c.texts {
				t.Errorf("the path is %s, want %s", got, c.texts)
			}
			if got := exported(t, st, r.Session); got != c.data {
				t.Errorf("exported is\n%q", got)
			}
			if r := bring(t, st, clock, "s.jsonl", c.data); r.Outcome != importer.Unchanged {
				t.Errorf("again: %+v", r)
			}
			if r := bring(t, st, clock, "s.jsonl", file(l)); r.Outcome == importer.Failed {
				t.Errorf("the whole file: %+v", r)
			}
			if got := exported(t, st, r.Session); got != file(l) {
				t.Errorf("then exported is\n%s", got)
			}
			verify(t, st)
		})
	}
}

// breakLines returns the lines with some faults, as bytes.
func breakLines(rnd *rand.Rand, lines []string) []byte {
	for range 1 + rnd.IntN(4) {
		i, j := rnd.IntN(len(lines)), rnd.IntN(len(lines))
		switch rnd.IntN(9) {
		case 0:
			lines[i] = lines[i][:rnd.IntN(len(lines[i])+1)]
		case 1:
			lines[i] = lines[i][:rnd.IntN(len(lines[i])+1)] + lines[j]
		case 2:
			lines[i] += lines[j]
		case 3:
			lines = slices.Insert(lines, i, lines[j])
		case 4:
			lines = append(slices.Delete(slices.Clone(lines), i, i+1), lines[i])
		case 5:
			lines[i] = strings.Replace(lines[i], `"u`, fmt.Sprintf(`"u%d`, rnd.IntN(3)), 1)
		case 6:
			lines[i] = strings.Replace(lines[i], `"s1"`, `"s2"`, 1)
		case 7:
			lines[i] = strings.Repeat("\x00", rnd.IntN(600)) + lines[i]
		case 8:
			lines[i], lines[j] = lines[j], lines[i]
		}
	}
	data := []byte(strings.Join(lines, []string{"\n", "\r\n"}[rnd.IntN(2)]))
	if rnd.IntN(3) > 0 {
		data = append(data, '\n')
	}
	return data[:len(data)-rnd.IntN(2)*rnd.IntN(min(40, len(data)))]
}

// Each line that can be read is in the store once it is finished, and a path leads to it. An import is repeatable,
// and gives back the file if that is of one session.
func TestP14_OfAnyBrokenFileEachReadableLineIsInTheStore(t *testing.T) {
	for seed := range testkit.Pick[uint64](1000, 500, 100) {
		rnd := rand.New(rand.NewPCG(seed, 14))
		lines := chain(4 + rnd.IntN(20))
		name := "s.jsonl"
		if kinds := slices.Sorted(maps.Keys(appended)); rnd.IntN(2) == 0 {
			name = kinds[rnd.IntN(len(kinds))]
			lines = slices.Clone(appended[name])
		}
		data := breakLines(rnd, lines)
		convs, bad := parseFile(t, name, data)
		if len(bad) > 0 {
			continue // no line of a known format is left, or a message has no conversation
		}
		st, clock := openClocked(t)
		results := importer.Load(ctx, st, convs, importer.Options{Clock: clock})
		have := map[string]bool{}
		for _, r := range results {
			if r.Err != nil {
				t.Fatalf("seed %d: %v", seed, r.Err)
			}
			s := session(t, st, r.Session)
			for _, n := range loaded(t, s, turnstone.Scope{Full: true}).Nodes {
				have[string(n.Payload)] = true
				path, err := s.Load(ctx, turnstone.Scope{Leaf: n.ID})
				if err != nil || path.Nodes[len(path.Nodes)-1].ID != n.ID {
					t.Fatalf("seed %d: no path to %s: %v", seed, n.Payload, err)
				}
			}
			if got := exported(t, st, r.Session); len(results) == 1 && got != string(data) {
				t.Errorf("seed %d: exported is\n%q, not\n%q", seed, got, data)
			}
		}
		for l := range bytes.Lines(data) {
			if l = bytes.Trim(l, " \r\n\x00"); bytes.HasPrefix(l, []byte("{")) && json.Valid(l) && !have[string(l)] {
				t.Errorf("seed %d: %s of\n%s", seed, l, data)
			}
		}
		for _, r := range importer.Load(ctx, st, convs, importer.Options{Clock: clock}) {
			if r.Outcome != importer.Unchanged {
				t.Errorf("seed %d again: %+v", seed, r)
			}
		}
		verify(t, st)
	}
}

func TestP15_AnEndedContextEndsAParse(t *testing.T) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := importer.Parse(over, "s.jsonl", []byte(file(chain(3))), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An ordinary line of an agent is not taken for one of another format, whatever it begins with.
func TestP18_FormatsAreNotConfused(t *testing.T) {
	line := func(s string) string { return strings.ReplaceAll(s, "ID", "11111111-1111-4111-8111-111111111111") }
	for name, c := range map[string]struct{ data, want string }{
		"claude.jsonl": {line(`{"parentUuid":null,"sessionId":"ID","type":"system","subtype":"local_command","content":"x","uuid":"u0"}` + "\n" +
			`{"parentUuid":"u0","sessionId":"ID","type":"user","uuid":"u1","message":{"role":"user","content":"hi"}}` + "\n"), "claude-code system user"},
		"state.json": {`{"config":{"configurable":{"thread_id":"t"}},"values":{"messages":[ {"type":"human","content":"hi"}, {"type":"ai","content":"ho"} ]}}`, "langchain user assistant"},
		"nul.json":   {`{"messages":[{"role":"user","content":"hi"}]}` + "\n\x00\x00", "openai user"},
		"one.json":   {"\ufeff [ {\"conversations\":[{\"from\":\"human\",\"value\":\"hi\"}]} ]\n", "sharegpt user"},
		"odd.json":   {`{"messages":[{"role":"user","content":"hi"}, 5, null]}`, "openai user"},
	} {
		st, clock := openClocked(t)
		r := bring(t, st, clock, name, c.data)
		got := r.Conversation.Format
		for _, n := range loaded(t, session(t, st, r.Session), turnstone.Scope{}).Nodes {
			got += " " + n.Kind
			if !json.Valid(n.Payload) {
				t.Errorf("%s: the payload is %s", name, n.Payload)
			}
		}
		if got != c.want || name == "odd.json" && r.Conversation.Mended[importer.MendUnknownKind] != 2 {
			t.Errorf("%s: %s, want %s; mended %v", name, got, c.want, r.Conversation.Mended)
		}
		if got := exported(t, st, r.Session); got != c.data {
			t.Errorf("%s: exported is %q", name, got)
		}
	}
	for name, data := range map[string]string{
		"logs.json": line(`[{"sessionId":"ID","messageId":0,"type":"user","message":"hi"}]`),
		"mix.jsonl": `{"messages":[{"role":"user","content":"a"}]}` + "\n" + `{"role":"user","content":"b"}` + "\n",
	} {
		if _, bad := parseFile(t, name, []byte(data)); len(bad) != 1 {
			t.Errorf("%s: %v", name, bad)
		}
	}
}

// A conversation whose beginning is in one file and whose end is in another is one session, on whose path are both.
// Importing either again changes nothing.
func TestP26_ASessionInSeveralFilesIsOnOnePath(t *testing.T) {
	l := chain(12)
	st, clock := openClocked(t)
	bring(t, st, clock, "a.jsonl", file(l[:6]))
	bring(t, st, clock, "b.jsonl", file(l[6:10]))
	for _, again := range []struct {
		name  string
		lines []string
		want  importer.Outcome
	}{
		{"a.jsonl", l[:6], importer.Unchanged},
		{"b.jsonl", l[6:10], importer.Unchanged},
		{"b.jsonl", l[6:], importer.Grown},
		{"a.jsonl", l[:6], importer.Unchanged},
		{"b.jsonl", l[6:], importer.Unchanged},
	} {
		if r := bring(t, st, clock, again.name, file(again.lines)); r.Outcome != again.want {
			t.Errorf("%s: %s, want %s", again.name, r.Outcome, again.want)
		}
	}
	if got := texts(loaded(t, session(t, st, "s1"), turnstone.Scope{}).Nodes); len(got) != 12 || got[0] != "text 0" || got[11] != "text 11" {
		t.Errorf("the path is %q", got)
	}
	verify(t, st)
}

// What is hostile in a line is stored as far as it is text, and makes no conversation fail.
func TestP14_NoLineMakesAConversationFail(t *testing.T) {
	models := ""
	for i := range 100 {
		models += strings.Replace(said(1, fmt.Sprint("m", i), "null"), `"model":"cl"`, fmt.Sprintf(`"model":"cl%d"`, i), 1) + "\n"
	}
	torn := `{"parentUuid":"u1","sessionId":"s1","type":"user","uuid":"u2","message":{"role":"user","content":[` +
		strings.Repeat(`{"type":"text","text":"`+strings.Repeat("x", 30_000)+`"},`, 30) + `{}]}}`
	for name, data := range map[string]string{
		"not UTF-8":       strings.NewReplacer(`"u1"`, "\"u\xff\"", `"sessionId"`, "\"cwd\":\"/\xff\",\"sessionId\"", `"cl"`, "\"\xfe\"").Replace(file(chain(4))),
		"keys like ours":  said(0, "b", "null") + "\n" + said(1, "b", "b") + "\n" + said(3, "b~x2", "b") + "\n" + said(5, "b", "b") + "\n",
		"many models":     models,
		"torn then whole": file(chain(2)) + torn[:len(torn)-40] + torn + "\n",
		"deep":            file(chain(2)) + strings.Repeat("[", 1_000_000) + "\n",
	} {
		st, clock := openClocked(t)
		r := bring(t, st, clock, "s.jsonl", data)
		if got := exported(t, st, r.Session); r.Outcome != importer.Imported || got != data {
			t.Errorf("%s: %+v", name, r)
		}
		if name == "torn then whole" && r.Nodes != 4 {
			t.Errorf("%s: %d nodes", name, r.Nodes)
		}
		verify(t, st)
	}
}

// These inputs took minutes once.
func TestP14_NoFileTakesLong(t *testing.T) {
	testkit.Slow(t)
	var system, forks strings.Builder
	system.WriteString(file(chain(2)))
	forks.WriteString(said(0, "u0", "null") + "\n")
	for i := range 20_000 {
		fmt.Fprintf(&system, `{"parentUuid":"u%d","sessionId":"s1","type":"system","uuid":"u%d"}`+"\n", i+1, i+2)
		forks.WriteString(strings.Replace(said(0, fmt.Sprint("u", i+1), fmt.Sprint("u", i)), `"s1"`, fmt.Sprintf(`"f%d"`, i), 1) + "\n")
	}
	for name, data := range map[string]string{
		"a long chain behind an answer": system.String(),
		"objects on one line":           strings.Repeat("{}", 200_000),
		"forks of forks":                forks.String(),
		"beginnings":                    strings.Repeat(`{"`, 1_000_000) + "\n",
	} {
		if _, _, err := importer.Parse(ctx, "s.jsonl", []byte(data), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, bad := parseFile(t, "s.jsonl", bytes.Repeat([]byte("{}\n"), 1<<20+2)); len(bad) != 1 || !strings.Contains(bad[0].Error(), "has more than 1048576 lines") {
		t.Errorf("%v", bad)
	}
}

// A file of lines keeps its ids when it grows, and usage that is copied or written twice is counted once.
func TestP6_UsageOfCopiesIsCountedOnce(t *testing.T) {
	st, clock := openClocked(t)
	one := `{"messages":[{"role":"assistant","content":"a","usage":{"prompt_tokens":10}}]}` + "\n"
	bringAll(t, st, clock, "log.jsonl", one)
	bringAll(t, st, clock, "log.jsonl", one+strings.Replace(one, "10", "20", 1))
	total := uint64(0)
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) != 2 {
		t.Fatalf("%d sessions, %v", len(page.Sessions), err)
	}
	for _, s := range page.Sessions {
		total += s.Usage[0].Input
	}
	if total != 30 {
		t.Errorf("%d tokens", total)
	}
	copied := strings.ReplaceAll(strings.ReplaceAll(file(chain(4)), `"s1"`, `"s2"`), `"type"`, `"forkedFrom":{"sessionId":"s1","messageUuid":"u3"},"type"`)
	bring(t, st, clock, "a.jsonl", file(chain(4)))
	r := bring(t, st, clock, "b.jsonl", copied)
	if i := infoOf(t, session(t, st, r.Session)); i.Parent != "s1" || len(i.Usage) != 0 {
		t.Errorf("%+v", i)
	}
}
