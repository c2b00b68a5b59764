package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/server"
)

func TestSV5_WhatIsMalformedIsRefusedBeforeAnyEffect(t *testing.T) {
	h := serve(t, server.Options{MaxRequestBytes: 4096}, nil)
	h.post("create", `{"id":"s"}`)
	for _, body := range []string{
		`{`, `[]`, `"x"`, `{"session":"s"} {}`, `{"session":"s"}x`, "{\"session\":\"s\"}\n{}", `{"session":"s","unknown":1}`, `{"session":1}`, `{"session":"s","expected":-1}`,
		`{"session":"s","nodes":[{"kind":"k","payload":[0]}]}`, `{"session":"s","nodes":[{"kind":"k","payload":[0,1]}]}`, `{"session":"s","nodes":[{"kind":"k","payload":[-1,1]}]}`,
		"{\"session\":\"s\",\"follow\":3,\"nodes\":[{\"kind\":\"k\",\"payload\":[2,2]}]}\nabc", "{\"session\":\"s\",\"follow\":-1}\n",
		"{\"session\":\"s\",\"follow\":1}\nab", `{"session":"s","nodes":[{"kind":"k","payload":"","parent":true}]}`,
	} {
		h.refuses("commit", body, "malformed", 400)
	}
	h.refuses("commit", "{\"session\":\"s\",\"follow\":9}\nab", "request", 400) // cut off
	h.refuses("commit", `{"session":"s","nodes":[{"kind":"","payload":""}]}`, "invalid", 422)
	h.refuses("commit", `{"session":"s","records":[{"key":"k","action":"burn"}]}`, "invalid", 422)
	h.refuses("delete", `{"session":"s","children":"eat"}`, "invalid", 422)
	h.refuses("delete", `{"session":"s","expected":0}`, "invalid", 422) // of which session of the id?
	h.refuses("commit", `{"session":"s","turn":"`+strings.Repeat("t", 5000)+`"}`, "too-large", 413)
	a, err := h.do("POST", "/v1/commit", io.MultiReader(strings.NewReader(`{"session":"s","turn":"`+strings.Repeat("t", 5000)+`"}`)))
	if err != nil || a.status != 413 {
		t.Errorf("of unknown length: %+v, %v", a, err)
	}
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":0`) {
		t.Error(got)
	}
	for _, path := range []string{"/", "/v1/none", "/v2/commit"} {
		if a := h.ask("POST", path, "{}"); a.status != 404 || a.kind != "no-operation" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	for _, path := range []string{"/v1/watch?session=s&after=x", "/v1/attachment?session=s&offset=-1&id=" + strings.Repeat("0", 64), "/v1/upload"} {
		if a := h.ask("GET", path, ""); a.status != 400 || a.kind != "request" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	h.post("commit", "{\"session\":\"s\",\"follow\":4,\"nodes\":[{\"kind\":\"k\",\"payload\":[1,3]},{\"kind\":\"k\",\"payload\":[0,1]}]}\n\x00\xff\x01\x02")
	if got := h.post("nodes", `{"session":"s"}`); !strings.Contains(got, "\xff\x01\x02") || !strings.Contains(got, `"\u0000"`) {
		t.Errorf("%q", got)
	}
}

// A session that is named with its incarnation is that session, and no other one of its id.
func TestSV1_AnIncarnationNamesTheSessionItself(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	of := func() string {
		var i struct{ Incarnation string }
		if err := json.Unmarshal([]byte(h.post("create", `{"id":"s"}`)), &i); err != nil || i.Incarnation == "" {
			t.Fatal(err)
		}
		return i.Incarnation
	}
	first := of()
	h.post("delete", `{"session":"s"}`)
	h.refuses("info", `{"session":"s"}`, "session-not-found", 404)
	h.refuses("info", `{"session":"s","incarnation":"`+first+`"}`, "session-deleted", 410)
	if second := of(); second == first {
		t.Fatal("it is the same session")
	}
	h.refuses("commit", `{"session":"s","incarnation":"`+first+`"}`, "session-deleted", 410)
	h.post("commit", `{"session":"s"}`)
	h.refuses("watch", `{}`, "method", 405)
	if a := h.ask("GET", "/v1/watch?session=s&incarnation="+first, ""); a.kind != "session-deleted" {
		t.Errorf("%+v", a)
	}
}

// A parameter that is misspelt is not taken for one that is absent: the request would be about another session.
func TestSV5_UnknownParametersOfAQueryAreRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	for _, path := range []string{
		"/v1/watch?session=s&incarnations=1", "/v1/watch?session=s&session=t", "/v1/watch?session=s&After=1", "/v1/changes?after=&since=",
		"/v1/attachment?session=s&blob=" + strings.Repeat("0", 64), "/v1/watch?session=s&incarnation=%zz", "/v1/watch?session=s;after=1",
	} {
		if a := h.ask("GET", path, ""); a.status != 400 || a.kind != "request" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if a := h.ask("DELETE", "/v1/upload?upload=1&session=s", ""); a.status != 400 || a.kind != "request" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("POST", "/v1/info?session=s", `{"session":"s"}`); a.status != 400 || a.kind != "request" {
		t.Errorf("%+v", a)
	}
}

// What json.Unmarshal would change is refused, and not changed.
func TestSV5_TextThatIsNotUTF8IsRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	for _, body := range []string{"{\"id\":\"a\xff\"}", `{"id":"\ud800"}`, `{"id":"\udc00\ud800"}`, `{"id":"\ud800\u0041"}`, "{\"id\":{\"a\":\"\xff\"}}"} {
		h.refuses("create", body, "malformed", 400)
	}
	h.post("create", `{"id":"\ud83d\ude00\\ud800 \ufffd"}`)
	if got := h.post("list", "{}"); !strings.Contains(got, "\U0001F600\\\\ud800 \ufffd") {
		t.Error(got)
	}
	if a := h.ask("GET", "/%ff", ""); a.kind != "no-operation" {
		t.Errorf("%+v", a)
	}
}

// A prune of one session retains a number of revisions. What else a prune of all can say is refused, before any effect;
// so is an erasure with a policy that there is none of.
func TestOP1_MaintenanceThatContradictsItselfIsRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	for i := range 3 {
		h.post("commit", fmt.Sprintf(`{"session":"s","expected":%d}`, i))
	}
	for name, bodies := range map[string][]string{
		"prune":       {`{"session":"s","revisions":1,"bytes":5}`, `{"session":"s","revisions":1,"ageNanoseconds":1}`, `{"session":"s","dryRun":true}`, `{"ageNanoseconds":-1}`},
		"erase":       {`{"session":"s","children":"all"}`, `{"session":"s","pace":7}`, `{"session":""}`},
		"erase-nodes": {`{"session":"s","nodes":[],"pace":7}`},
	} {
		for _, body := range bodies {
			if got := h.ask("POST", "/v1/"+name, body).body; !strings.Contains(got, `#invalid"`) {
				t.Errorf("%s %s: %s", name, body, got)
			}
		}
	}
	if got := h.post("checkpoint", `{"session":"s","at":1}`); strings.Contains(got, "problem") {
		t.Errorf("after all refusals: %s", got)
	}
}

// What can't be read at all fails alike, however much of it was asked for at once.
func TestSV5_NodesAndLoadFailAlike(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	h.post("commit", `{"session":"s","nodes":[{"kind":"u","payload":"x"}]}`)
	for scope, kind := range map[string]string{
		`"at":7`: "revision-not-found", `"last":-1`: "invalid", `"full":true,"last":1`: "invalid", `"after":9`: "revision-not-found",
		`"leaf":"` + strings.Repeat("0a", 32) + `"`: "node-not-found", `"incarnation":"` + strings.Repeat("0a", 16) + `"`: "session-deleted",
	} {
		for _, name := range []string{"load", "nodes"} {
			if a := h.ask("POST", "/v1/"+name, `{"session":"s",`+scope+`}`); a.kind != kind || a.status/100 != 4 {
				t.Errorf("%s %s: %d %s", name, scope, a.status, a.body)
			}
		}
	}
	if got := h.post("nodes", `{"session":"s","after":1}`); !strings.HasPrefix(got, `{"at":1}`) {
		t.Error(got)
	}
}
