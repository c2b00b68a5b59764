package importer_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestWhatStandsOutsideTheMessagesIsKept(t *testing.T) {
	long := strings.Repeat("x", 300)
	for file, c := range map[string]struct {
		data    string
		labels  map[string]string
		outside string
		shared  string
	}{
		"tau.json": {
			data:    `[{"task_id":3,"trial":1,"reward":0.5,"info":{"user_cost":1e-3,"task":{"instruction":"be rude"}},"traj":[]}]`,
			labels:  map[string]string{".file.task_id": "3", ".file.trial": "1", ".file.reward": "0.5", ".file.info.user_cost": "1e-3"},
			outside: `{"info":{"user_cost":1e-3,"task":{"instruction":"be rude"}},"reward":0.5,"task_id":3,"trial":1}`,
		},
		"tau2.json": {
			data:    `{"timestamp":"t","info":{"seed":7},"tasks":[{"id":"8"}],"simulations":[{"id":"sim","task_id":"8","termination_reason":"user_stop","reward_info":{"reward":1.0},"messages":[{"role":"user","content":"x"}]}]}`,
			labels:  map[string]string{".file.id": "sim", ".file.task_id": "8", ".file.termination_reason": "user_stop", ".file.reward_info.reward": "1.0"},
			outside: `{"id":"sim","reward_info":{"reward":1.0},"task_id":"8","termination_reason":"user_stop"}`,
			shared:  `{"info":{"seed":7},"tasks":[{"id":"8"}],"timestamp":"t"}`,
		},
		"swe.traj": {
			data:    `{"environment":"env<1>","history":[{"role":"user","content":"issue"},{"role":"assistant","content":"a"}],"trajectory":[{"action":"ls","messages":[1]},{"action":"rm","messages":[2]}],"info":{"exit_status":"submitted","submission":"diff"}}`,
			labels:  map[string]string{".file.environment": "env<1>", ".file.info.exit_status": "submitted", ".file.info.submission": "diff"},
			outside: `{"environment":"env<1>","info":{"exit_status":"submitted","submission":"diff"},"trajectory":[{"action":"ls"},{"action":"rm","messages":[2]}]}`,
		},
		"hands.jsonl": {
			data:    `{"instance_id":"repo__1","instruction":"` + long + `","test_result":{"resolved":true},"history":[{"action":"message","content":"do"}]}` + "\n",
			labels:  map[string]string{".file.instance_id": "repo__1", ".file.test_result.resolved": "true"},
			outside: `{"instance_id":"repo__1","instruction":"` + long + `","test_result":{"resolved":true}}`,
		},
		"chat.json": {
			data:    `{"system":"be kind","model":"m","messages":[{"role":"user","content":"a"}]}`,
			labels:  map[string]string{".file.system": "be kind", ".file.model": "m"},
			outside: `{"model":"m","system":"be kind"}`,
		},
	} {
		st := openStore(t, memory.New())
		for round := range 2 {
			r := importer.Load(ctx, st, parse(t, file, c.data), importer.Options{})
			if len(r) != 1 || r[0].Err != nil || round == 1 && r[0].Outcome != importer.Unchanged {
				t.Fatalf("%s: %+v", file, r)
			}
			s := session(t, st, r[0].Session)
			info := infoOf(t, s)
			n := 0
			for key, value := range info.Labels {
				if strings.HasPrefix(key, ".file.") {
					n++
					if c.labels[key] != value {
						t.Errorf("%s: label %s is %q, want %q", file, key, value, c.labels[key])
					}
				}
			}
			if n != len(c.labels) {
				t.Errorf("%s: labels %v, want %v", file, info.Labels, c.labels)
			}
			parts := partsOf(t, s)
			if string(parts[importer.OutsidePart]) != c.outside || string(parts[importer.SharedPart]) != c.shared {
				t.Errorf("%s: %s\n%s", file, parts[importer.OutsidePart], parts[importer.SharedPart])
			}
			if first, err := s.Checkpoint(ctx, 1); err != nil || string(first[importer.OutsidePart]) != c.outside {
				t.Errorf("%s: the first revision has %s, %v", file, first[importer.OutsidePart], err)
			}
		}
		// Fields of a later version of the file replace earlier ones.
		changed := strings.NewReplacer(`"reward":`, `"more":true,"reward":`, `"environment"`, `"more":true,"environment"`, `"instance_id"`, `"more":true,"instance_id"`, `"system":"be kind"`, `"more":true`).Replace(c.data)
		r := importer.Load(ctx, st, parse(t, file, changed), importer.Options{})
		if r[0].Outcome != importer.Updated || r[0].Added != 0 {
			t.Errorf("%s: %+v", file, r[0])
		}
		s := session(t, st, r[0].Session)
		info := infoOf(t, s)
		if info.Labels[".file.more"] == "" && info.Labels[".file.reward_info.more"] == "" || file == "chat.json" && info.Labels[".file.system"] != "" {
			t.Errorf("%s: %v", file, info.Labels)
		}
		verify(t, st)
		st.Close()
	}
}

// The sessions hold everything of the corpus' files that are one JSON value: the files
// can be put together from them.
func TestNothingOfARealFileIsDropped(t *testing.T) {
	testkit.Slow(t)
	dir := corpus(t)
	canonical := func(raw []byte) string {
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	compared := 0
	for name := range sources(t, dir) {
		data := read(t, filepath.Join(dir, name))
		convs, bad := parseFile(t, name, data)
		if len(bad) > 0 {
			t.Fatal(bad)
		}
		if convs[0].Format != "tau-bench" && convs[0].Format != "swe-agent" {
			continue
		}
		var again []any
		for _, c := range convs {
			var top map[string]any
			if err := json.Unmarshal(c.Outside, &top); err != nil {
				t.Fatal(name, err)
			}
			events, step := []any{}, 0
			for _, e := range c.Events {
				events = append(events, json.RawMessage(e.Payload))
				if prompt := e.Checkpoint["prompt"]; prompt != nil {
					top["trajectory"].([]any)[step].(map[string]any)["messages"] = json.RawMessage(prompt)
					step++
				}
			}
			top[map[string]string{"tau-bench": "traj", "swe-agent": "history"}[c.Format]] = events
			again = append(again, top)
		}
		var whole any = again
		if convs[0].Format == "swe-agent" {
			whole = again[0]
		}
		b, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		if canonical(b) != canonical(data) {
			t.Errorf("%s: the sessions do not have all of it", name)
		}
		compared++
	}
	if compared < 10 {
		t.Errorf("%d files compared", compared)
	}
}

func TestCommitsHaveTheTimesOfTheFile(t *testing.T) {
	day := func(d, h int) time.Time { return time.Date(2025, 1, d, h, 0, 0, 0, time.UTC) }
	present := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for file, c := range map[string]struct {
		data    string
		created time.Time
		commits []time.Time
	}{
		"plain.jsonl": {
			`{"role":"user","content":"a","timestamp":"2025-01-02T10:00:00Z"}` + "\n" + `{"role":"assistant","content":"b"}` + "\n" + `{"role":"user","content":"c","ts":1736071200000}`,
			day(2, 10),
			[]time.Time{day(2, 10), day(5, 10)},
		},
		"seconds.jsonl": {`{"role":"user","content":"a","created_at":1736071200}`, day(5, 10), []time.Time{day(5, 10)}},
		"pi.jsonl": {
			`{"type":"session","id":"p1","timestamp":"2025-01-01T10:00:00+01:00","provider":"a"}` + "\n" + `{"type":"message","message":{"role":"user","content":"q","timestamp":1736071200000}}`,
			day(1, 9),
			[]time.Time{day(5, 10)},
		},
		"claude.jsonl": {
			`{"type":"summary","summary":"s","leafUuid":"x"}` + "\n" + `{"type":"user","uuid":"a","sessionId":"c1","timestamp":"2025-01-03T04:00:00.000Z","message":{"role":"user","content":"hi"}}`,
			day(3, 4),
			[]time.Time{day(3, 4)},
		},
		"tau2.json":   {`{"info":{},"simulations":[{"id":"s","start_time":"2025-01-01T01:00:00","messages":[{"role":"user","content":"x","timestamp":"2025-01-01T02:00:00.000"}]}]}`, day(1, 1), []time.Time{day(1, 2)}},
		"chat.json":   {`{"created":1736071200,"messages":[{"role":"user","content":"a"}]}`, day(5, 10), []time.Time{day(5, 10)}},
		"hands.json":  {`[{"action":"message","source":"user","timestamp":"2025-01-01T03:00:00.5"},{"action":"run"}]`, day(1, 3).Add(time.Second / 2), []time.Time{day(1, 3).Add(time.Second / 2)}},
		"none.jsonl":  {`{"role":"user","content":"a"}`, present, []time.Time{present}},
		"wrong.jsonl": {`{"role":"user","content":"a","timestamp":"9999-01-01T00:00:00Z"}`, present, []time.Time{present}},
	} {
		st, clock := openClocked(t)
		id := bring(t, st, clock, file, c.data).Session
		s := session(t, st, id)
		info := infoOf(t, s)
		last := c.commits[len(c.commits)-1]
		if !info.Created.Equal(c.created) || !info.Updated.Equal(last) {
			t.Errorf("%s: from %v to %v, want %v to %v", file, info.Created, info.Updated, c.created, last)
		}
		n := 0
		for e, err := range s.Log(ctx, 0) {
			if err != nil || !e.Time.Equal(c.commits[n]) {
				t.Errorf("%s: commit %d at %v, %v", file, n, e.Time, err)
			}
			n++
		}
		if n != len(c.commits) {
			t.Errorf("%s: %d commits", file, n)
		}
		if now := clock.Now(); !now.Equal(present) {
			t.Errorf("%s: after the import it is %v", file, now)
		}
	}
}

func TestUsageIsReadInTheFormsThatAgentsHave(t *testing.T) {
	response := func(id string, in, out int) string {
		return fmt.Sprintf(`"tool_call_metadata":{"model_response":{"id":%q,"model":"gpt","usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":1}}}}`, id, in, out)
	}
	running := func(in, out int) string {
		return fmt.Sprintf(`"llm_metrics":{"accumulated_cost":0.1,"accumulated_token_usage":{"model":"gpt","prompt_tokens":%d,"completion_tokens":%d,"cache_read_tokens":2,"cache_write_tokens":3}}`, in, out)
	}
	for file, c := range map[string]struct{ data, want string }{
		// Parallel calls repeat their response.
		"responses.json":   {`[{"action":"message","source":"user"},{"action":"run",` + response("r1", 5, 1) + `},{"action":"read",` + response("r1", 5, 1) + `},{"observation":"run",` + response("r1", 5, 1) + `},{"action":"run",` + response("r2", 7, 2) + `}]`, "[{gpt 12 3 2 0 0 0}]"},
		"running.json":     {`[{"action":"message","source":"user"},{"action":"run",` + running(5, 1) + `},{"action":"run",` + running(12, 3) + `},{"action":"finish",` + running(12, 3) + `}]`, "[{gpt 12 3 2 3 0 100000000}]"},
		"both.json":        {`[{"action":"run",` + response("r1", 5, 1) + `},{"action":"run",` + running(12, 3) + `}]`, "[{gpt 12 3 2 3 0 100000000}]"},
		"total.jsonl":      {`{"instruction":"i","history":[{"action":"run"}],"metrics":{"accumulated_token_usage":{"model":"gpt","prompt_tokens":9,"completion_tokens":4},"costs":[]}}`, "[{gpt 9 4 0 0 0 0}]"},
		"each.jsonl":       {`{"instruction":"i","history":[{"action":"run"}],"metrics":{"token_usages":[{"model":"a","prompt_tokens":9},{"model":"b","prompt_tokens":1},{"model":"a","completion_tokens":4}]}}`, "[{a 9 4 0 0 0 0} {b 1 0 0 0 0 0}]"},
		"topped.jsonl":     {`{"instruction":"i","history":[{"action":"run",` + response("r1", 5, 1) + `}],"metrics":{"accumulated_token_usage":{"model":"default","prompt_tokens":8,"completion_tokens":1,"cache_read_tokens":1}}}`, "[{gpt 8 1 1 0 0 0}]"},
		"pairs.jsonl":      {`{"instruction":"i","history":[[{"action":"message"},{"observation":"null"}],[{"action":"run",` + response("r1", 5, 1) + `},{"observation":"run"}]]}`, "[{gpt 5 1 1 0 0 0}]"},
		"cline.json":       {`[{"role":"user","content":[]},{"role":"assistant","content":[],"ts":1736071200000,"modelInfo":{"modelId":"cl","providerId":"p"},"metrics":{"tokens":{"prompt":10,"completion":3,"cached":4},"cost":0.1}}]`, "[{cl 10 3 4 0 0 100000000}]"},
		"ui_messages.json": {`[{"ts":1736071200000,"type":"say","say":"text","text":"the task"},{"ts":1736071201000,"type":"say","say":"api_req_started","modelInfo":{"modelId":"cl"},"text":"{\"request\":\"r\",\"tokensIn\":10,\"tokensOut\":3,\"cacheReads\":4,\"cacheWrites\":5,\"cost\":0.1}"},{"type":"say","say":"text","text":"done"}]`, "[{cl 19 3 4 5 0 100000000}]"},
		"mini.traj.json":   {`{"info":{"config":{"model":{"model_name":"m"}}},"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","extra":{"response":{"model":"gpt","usage":{"prompt_tokens":10,"completion_tokens":3}}}}]}`, "[{gpt 10 3 0 0 0 0}]"},
		"swe.traj":         {`{"history":[{"role":"user","content":"i"}],"info":{"model_stats":{"instance_cost":0.5,"tokens_sent":10,"tokens_received":3}},"replay_config":"{\"agent\":{\"model\":{\"name\":\"claude\"}}}"}`, "[{claude 10 3 0 0 0 500000000}]"},
		"object.traj":      {`{"history":[{"role":"user","content":"i"}],"info":{"model_stats":{"tokens_sent":10,"tokens_received":3}},"replay_config":{"agent":{"model":{"name":"claude"}}}}`, "[{claude 10 3 0 0 0 0}]"},
		"sum.json":         {`{"model":"m","usage":{"prompt_tokens":8,"completion_tokens":2},"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","usage":{"prompt_tokens":8,"completion_tokens":2},"model":"m"}]}`, "[{m 8 2 0 0 0 0}]"},
	} {
		st := openStore(t, memory.New())
		for range 2 {
			r := importer.Load(ctx, st, parse(t, file, c.data), importer.Options{})
			s := session(t, st, r[0].Session)
			info := infoOf(t, s)
			if got := fmt.Sprint(info.Usage); got != c.want {
				t.Errorf("%s: %s, want %s", file, got, c.want)
			}
			if model := c.want[2:strings.Index(c.want, " ")]; info.Model != model && file != "each.jsonl" {
				t.Errorf("%s: model %q, want %q", file, info.Model, model)
			}
		}
		st.Close()
	}
}

func TestARunningTotalIsCountedOnceWhenItsFileGrows(t *testing.T) {
	st := openStore(t, memory.New())
	defer st.Close()
	for i, sent := range []int{10, 25, 25, 40} {
		var history []string
		for j := range i + 2 {
			history = append(history, fmt.Sprintf(`{"role":%q,"content":"%d"}`, []string{"user", "assistant"}[j%2], j))
		}
		data := fmt.Sprintf(`{"history":[%s],"info":{"model_stats":{"tokens_sent":%d,"tokens_received":%d}}}`, strings.Join(history, ","), sent, i)
		r := importer.Load(ctx, st, parse(t, "run.traj", data), importer.Options{})
		s := session(t, st, r[0].Session)
		info := infoOf(t, s)
		if want := fmt.Sprint([]head.Usage{{Input: uint64(sent), Output: uint64(i)}}); fmt.Sprint(info.Usage) != want {
			t.Errorf("%v, want %s", info.Usage, want)
		}
	}
}

func TestEveryPromptOfARunIsKept(t *testing.T) {
	testkit.Slow(t)
	dir := corpus(t)
	files, err := filepath.Glob(filepath.Join(dir, "swesmith-*.gz"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		for _, steps := range []bool{false, true} {
			st := openStore(t, memory.New())
			convs := parse(t, f, string(read(t, f)))
			r := load(t, st, convs, importer.Options{BySteps: steps}, importer.Imported)
			s := session(t, st, r[0].Session)
			var want []string
			for _, e := range convs[0].Events {
				if p := e.Checkpoint["prompt"]; p != nil {
					want = append(want, string(p))
				}
			}
			var got []string
			for i := range r[0].Commits {
				parts, err := s.Checkpoint(ctx, head.Revision(i+1))
				if err != nil {
					t.Fatal(err)
				}
				if p := string(parts["prompt"]); p != "" && (len(got) == 0 || got[len(got)-1] != p) {
					got = append(got, p)
				}
			}
			if len(want) < 17 || len(got) != len(want) || strings.Join(got, "") != strings.Join(want, "") {
				t.Errorf("%s, by steps %v: %d prompts of %d", filepath.Base(f), steps, len(got), len(want))
			}
			st.Close()
		}
	}
}
