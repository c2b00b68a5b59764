package importer_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// These are small files of every format.
var formats = map[string]string{
	"openai.json":    `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}`,
	"list.json":      `[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"r"}]`,
	"chats.jsonl":    `{"messages":[{"role":"user","content":"a"}]}` + "\n" + `{"messages":[{"role":"user","content":"b"}]}` + "\n",
	"tau.json":       `[{"task_id":0,"trial":1,"traj":[{"role":"user","content":"x"}]},{"task_id":1,"trial":0,"traj":[]}]`,
	"tau2.json":      `{"info":{"agent_info":{"llm":"a"},"user_info":{"llm":"u"}},"simulations":[{"id":"sim","messages":[{"role":"assistant","content":"hello","usage":{"prompt_tokens":1,"completion_tokens":1}},{"role":"user","content":"x","usage":{"prompt_tokens":7,"completion_tokens":1}}]}]}`,
	"swe.traj":       `{"history":[{"role":"system","content":"s"},{"role":"user","content":"issue"},{"role":"assistant","content":"a"},{"role":"user","content":"obs"}],"trajectory":[{"messages":[{"role":"system"}, 1]}],"info":{"model_stats":{"tokens_sent":10,"tokens_received":3}}}`,
	"hands.jsonl":    `{"instruction":"i","history":[{"action":"message","content":"do"},{"action":"run","command":"ls"},{"observation":"run","content":"x"}]}` + "\n",
	"pi.jsonl":       `{"type":"session","id":"p1","cwd":"/x","provider":"a","modelId":"m"}` + "\n" + `{"type":"message","message":{"role":"user","content":"q"}}` + "\n" + `{"type":"message","message":{"role":"assistant","model":"m","content":[],"usage":{"input":1,"output":2,"cacheRead":3,"cacheWrite":4}}}` + "\n",
	"claude.jsonl":   claude,
	"plain.jsonl":    `{"role":"user","content":"one"}` + "\n\n" + `{"role":"assistant","content":"two"}`,
	"ui.json":        `[{"ts":1,"type":"say","say":"text","text":"task"},{"ts":2,"type":"say","say":"api_req_started","text":"{\"tokensIn\":2}"},{"ts":3,"type":"ask","ask":"followup","text":"sure?"},{"ts":4,"type":"say","say":"user_feedback","text":"yes"}]`,
	"events.json":    `[{"id":0,"source":"user","action":"message","args":{"content":"do"}},{"id":1,"action":"run"},{"id":2,"observation":"run","content":"x"}]`,
	"packed.json.gz": "",
}

const claude = `{"type":"summary","summary":"s","leafUuid":"x"}
{"type":"user","uuid":"a","parentUuid":null,"sessionId":"c1","cwd":"/w","message":{"role":"user","content":"hi"}}
{"type":"assistant","uuid":"b","parentUuid":"a","sessionId":"c1","message":{"id":"m1","model":"cl","content":[{"type":"text","text":"one"}],"usage":{"input_tokens":3,"output_tokens":1}}}
{"type":"assistant","uuid":"d","parentUuid":"c","sessionId":"c1","message":{"id":"m2","model":"cl","content":[{"type":"tool_use","id":"t1","name":"Task","input":{}}],"usage":{"input_tokens":4,"output_tokens":6}}}
{"type":"assistant","uuid":"c","parentUuid":"b","sessionId":"c1","message":{"id":"m1","model":"cl","content":[{"type":"text","text":"two"}],"usage":{"input_tokens":3,"output_tokens":9}}}
{"type":"user","uuid":"e","parentUuid":"d","sessionId":"c1","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"ok"}]},"toolUseResult":{"agentId":"ag"}}
{"type":"user","uuid":"f","parentUuid":"b","sessionId":"c1","message":{"role":"user","content":"rewound"}}
{"type":"user","uuid":"g","parentUuid":null,"sessionId":"c1","agentId":"ag","isSidechain":true,"message":{"role":"user","content":"sub"}}
{"type":"user","uuid":"h","parentUuid":"c","sessionId":"c2","message":{"role":"user","content":"forked"}}
`

func packed(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.Bytes()
}

func TestEveryFormatIsFoundOut(t *testing.T) {
	want := map[string]string{
		"openai.json": "openai:openai 3 [] total [{m 5 2 3 0 0 0}]", "list.json": "list:openai 3 []",
		"chats.jsonl": "chats/0:openai 1 [] chats/1:openai 1 []", "tau.json": "tau/0/1:tau-bench 1 [] tau/1/0:tau-bench 0 []",
		"tau2.json": "sim:tau2 2 [{a 1 1 0 0 0 0} {u (simulated user) 7 1 0 0 0 0}]", "swe.traj": "swe:swe-agent 4 [] total [{ 10 3 0 0 0 0}]",
		"hands.jsonl": "hands/0:openhands 3 []", "pi.jsonl": "p1:pi 3 [{m 8 2 3 4 0 0}]", "plain.jsonl": "plain:openai 2 []",
		"claude.jsonl":   "c1:claude-code 7 [{cl 3 1 0 0 0 0} {cl 0 8 0 0 0 0} {cl 4 6 0 0 0 0}] c1/ag:claude-code 1 [] c2:claude-code 1 []",
		"packed.json.gz": "packed:openai 1 []", "ui.json": "ui:cline 4 [{ 2 0 0 0 0 0}]", "events.json": "events:openhands 3 []",
	}
	for file, data := range formats {
		content := []byte(data)
		if strings.HasSuffix(file, ".gz") {
			var err error
			if content, err = importer.Read(ctx, bytes.NewReader(packed(`[{"role":"user"}]`))); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, c := range parse(t, file, string(content)) {
			var usage []head.Usage
			for _, e := range c.Events {
				usage = append(usage, e.Usage...)
			}
			out := fmt.Sprintf("%s:%s %d %v", c.ID, c.Format, len(c.Events), usage)
			if c.Totals != nil {
				out += fmt.Sprintf(" total %v", c.Totals)
			}
			got = append(got, out)
		}
		w := want[file]
		if s := strings.Join(got, " "); s != w {
			t.Errorf("%s:\n got %s\nwant %s", file, s, w)
		}
	}
}

func TestClaudeTreesForksAndSubAgents(t *testing.T) {
	st := openStore(t, memory.New())
	defer st.Close()
	convs := parse(t, "claude.jsonl", claude)
	load(t, st, convs, importer.Options{}, importer.Imported)
	load(t, st, convs, importer.Options{BySteps: true}, importer.Unchanged)
	verify(t, st)
	graph := func(id string, sc turnstone.Scope) string {
		return strings.Join(keys(loaded(t, session(t, st, id), sc).Nodes), " ")
	}
	for id, want := range map[string][2]string{
		"c1":    {"a b f", " a b c d e f"},
		"c1/ag": {"g", "g"},
		"c2":    {"a b c h", " a b c h"},
	} {
		if got := graph(id, turnstone.Scope{}); got != want[0] {
			t.Errorf("path of %s is %q, want %q", id, got, want[0])
		}
		if got := graph(id, turnstone.Scope{Full: true}); got != want[1] && id != "c2" {
			t.Errorf("graph of %s is %q, want %q", id, got, want[1])
		}
	}
	info := infoOf(t, session(t, st, "c1/ag"))
	call, err := session(t, st, "c1").NodeByKey(ctx, "d")
	if err != nil || info.Parent != "c1" || !info.Detached || info.ForkNode != call.ID {
		t.Errorf("sub-agent: %+v, %v", info, err)
	}
}

func TestBrokenInputIsNamedWithItsPlace(t *testing.T) {
	for file, c := range map[string]struct{ data, want string }{
		"empty.json":   {"  ", "empty.json: is empty"},
		"zeros.jsonl":  {"\x00\x00\x00", "zeros.jsonl: is empty"},
		"half.jsonl":   {`{"role":"us`, "half.jsonl: is not finished"},
		"unknown.json": {`{"a":1}`, "unknown.json:1: unknown format"},
		"types.json":   {`[{"role":7}]`, "types.json: unknown format"},
		"list.json":    {`[1,2]`, "list.json: is an array, but not of messages or conversations"},
		"chats.jsonl":  {`{"messages":[{"role":"user","content":"a"}]}` + "\n{torn\n", "chats.jsonl:2: unreadable line"},
	} {
		_, bad := parseFile(t, file, []byte(c.data))
		var got []string
		for _, b := range bad {
			got = append(got, b.Error())
		}
		want := strings.Split(c.want, "|")
		if len(got) != len(want) {
			t.Errorf("%s: %q, want %q", file, got, want)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", file, got[i], want[i])
			}
		}
	}
}

func TestP10_AMessageThatTheStoreWouldRefuseIsRefusedBeforeAnyEffect(t *testing.T) {
	st := openStore(t, memory.New())
	defer st.Close()
	convs := parse(t, "plain.jsonl", formats["plain.jsonl"])
	convs[0].Events = append(convs[0].Events, importer.Event{Kind: "user", Turn: true, Payload: []byte("x"), Key: strings.Repeat("k", turnstone.MaxEventKey+1)})
	for _, r := range importer.Load(ctx, st, convs, importer.Options{}) {
		if r.Outcome != importer.Failed || !errors.Is(r.Err, turnstone.ErrLimit) {
			t.Errorf("%s, %v", r.Outcome, r.Err)
		}
	}
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) != 0 {
		t.Errorf("%v, %v", page.Sessions, err)
	}
}

func TestStepsAndTurns(t *testing.T) {
	var b strings.Builder
	for i := range 3 {
		fmt.Fprintf(&b, `{"role":"user","content":"q%d"}`+"\n", i)
		for range 2 {
			b.WriteString(`{"role":"assistant","content":"call"}` + "\n" + `{"role":"tool","content":"result"}` + "\n")
		}
	}
	for steps, want := range map[bool]int{false: 3, true: 6} {
		st := openStore(t, memory.New())
		r := load(t, st, parse(t, "x.jsonl", b.String()), importer.Options{BySteps: steps}, importer.Imported)
		if r[0].Commits != want {
			t.Errorf("by steps %v: %d commits, want %d", steps, r[0].Commits, want)
		}
		st.Close()
	}
}

// No input panics, and every conversation that is parsed can be loaded and read back.
func FuzzParse(f *testing.F) {
	for file, data := range formats {
		f.Add(file, []byte(data))
	}
	f.Fuzz(func(t *testing.T, file string, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		convs, _ := parseFile(t, file, data)
		st := openStore(t, memory.New())
		defer st.Close()
		for _, r := range importer.Load(ctx, st, convs, importer.Options{BySteps: len(data)%2 == 0}) {
			if r.Err != nil {
				continue
			}
			s := session(t, st, r.Conversation.ID)
			state := loaded(t, s, turnstone.Scope{Full: true})
			own := state.Nodes[len(state.Nodes)-r.Nodes:]
			for i, n := range own {
				if !bytes.Equal(n.Payload, r.Conversation.Events[i].Payload) {
					t.Fatalf("node %d differs", i)
				}
			}
		}
		verify(t, st)
	})
}

// After an import, the export of the session is the file, whatever the file was before.
// Importing it again changes nothing.
func FuzzGrow(f *testing.F) {
	for file, all := range appended {
		f.Add(file, []byte(strings.Join(all[:3], "\n")+"\n{"), []byte(strings.Join(all, "\n")))
		f.Add(file, []byte(strings.Join(all, "\n")), []byte(strings.ReplaceAll(strings.Join(all, "\n"), "q", "e")))
	}
	f.Fuzz(func(t *testing.T, file string, before, after []byte) {
		if len(before)+len(after) > 1<<15 {
			return
		}
		st := openStore(t, memory.New())
		defer st.Close()
		convs, _ := parseFile(t, file, before)
		importer.Load(ctx, st, convs, importer.Options{})
		convs, bad := parseFile(t, file, after)
		for round := range 2 {
			for _, r := range importer.Load(ctx, st, convs, importer.Options{}) {
				if r.Err != nil {
					if len(convs) == 1 {
						t.Fatal(r.Err)
					}
					continue // it may belong to a conversation that can't be read
				}
				c := r.Conversation
				if len(convs) == 1 && round == 1 && r.Outcome != importer.Unchanged {
					t.Fatalf("%+v", r)
				}
				// A last line that is cut off is still being written: what it was before stays until then.
				last := after[bytes.LastIndexByte(after, '\n')+1:]
				torn := len(last) > 0 && !json.Valid(last) || slices.ContainsFunc(c.Events, func(e importer.Event) bool { return e.Kind == "unreadable" })
				if len(convs) == 1 && len(bad) == 0 && !torn && (c.Format == "pi" || c.Format == "claude-code") {
					if got := exported(t, st, r.Session); got != string(after) {
						t.Fatalf("exported as %q, not %q", got, after)
					}
				}
			}
		}
		verify(t, st)
	})
}

func FuzzRead(f *testing.F) {
	f.Add(packed("hello"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = importer.Read(ctx, bytes.NewReader(data))
	})
}

// Whatever a file is, the secret is in no event, and an event that was JSON still is.
func FuzzRedact(f *testing.F) {
	const secret = "hunter2hunter2"
	for _, s := range []string{
		`{"role":"user","content":"` + secret + `"}`, "\ufeff" + `{"role":"user","content":"\n` + secret + `\\"}{"a":"{\"b\":\"` + secret + `\"}"}`, `[{"role":"` + secret, `{"` + secret + `":[" {\"x\":\"\u0068unter2hunter2\"}"]}`,
	} {
		f.Add([]byte(s))
	}
	secrets := func(text string) (found []importer.Secret) {
		if strings.Contains(text, secret) {
			found = append(found, importer.Secret{Rule: "rule", Text: secret})
		}
		return found
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		convs, _, err := importer.Parse(ctx, "s.jsonl", slices.Clone(data), secrets)
		plain, _, plainErr := importer.Parse(ctx, "s.jsonl", data, nil)
		if err != nil || plainErr != nil {
			t.Fatal(err, plainErr)
		}
		events, broken := 0, 0
		for _, c := range convs {
			for _, e := range c.Events {
				if events++; bytes.Contains(e.Payload, []byte(secret)) {
					t.Errorf("%s", e.Payload)
				}
				if e.Kind == importer.Unreadable {
					broken++
				}
			}
		}
		for _, c := range plain {
			for _, e := range c.Events {
				if events--; e.Kind == importer.Unreadable {
					broken--
				}
			}
		}
		if !bytes.Contains(data, []byte(secret)) && (events != 0 || broken > 0) {
			t.Errorf("%d events more, %d of them broken", events, broken)
		}
	})
}
