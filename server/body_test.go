package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/server"
)

const base = "Turnstone-Base"

func TestSV11_ABodyMayBeADifference(t *testing.T) {
	h := serve(t, server.Options{MaxRequestBytes: 8192, MaxBodyBytes: 20_000, Patience: 200 * time.Millisecond}, nil)
	h.post("create", `{"id":"s"}`)
	part := func() string { return h.post("checkpoint", `{"session":"s"}`) }
	text := strings.Repeat("a long text. ", 300)
	whole := `{"session":"s","expected":"any","checkpoint":[{"name":"p","content":"` + text + `"}]}`
	end := len(whole) - len(`"}]}`)
	h.post("commit", whole, request, "0", base, "none")
	for i := range 50 { // what they take is given back
		difference := fmt.Sprintf(`{"copies":[[0,%d,2],[%d,4,0]],"fresh":"+%d"}`, end+2*i, end+2*i, i%10)
		answer := h.post("commit", difference, request, fmt.Sprint(i+1), base, fmt.Sprint(i))
		if again := h.post("commit", difference, request, fmt.Sprint(i+1), base, fmt.Sprint(i)); again != answer {
			t.Fatalf("%s, then %s", answer, again)
		}
	}
	if got := part(); !strings.Contains(got, text+"+0+1+2+3") || strings.Count(got, "+") != 50 {
		t.Error(got)
	}
	// The same request is not the difference from another base.
	h.refuses("commit", fmt.Sprintf(`{"copies":[[0,%d,2],[%d,4,0]],"fresh":"+9"}`, end+98, end+98), "request", 400, request, "50", base, "48")
	for i, name := range []string{"0", "another"} { // forgotten, and never there
		a := h.ask("POST", "/v1/commit", `{"copies":[[0,1,0]]}`, request, fmt.Sprint("r", i), base, name)
		if a.kind != "base-not-found" || a.status != 412 || a.header.Get(request) != fmt.Sprint("r", i) {
			t.Errorf("%+v", a)
		}
	}
	h.post("commit", `{"session":"s","expected":51}`, request, "r0") // a refusal had no effect
	h.refuses("commit", `{"copies":[]}`, "base-not-found", 412, request, "r", base, "50", "Turnstone-Namespace", "other")
	h.refuses("commit", `{"copies":[[0,1,0]]}`, "request", 400, request, "50", base, "none") // It is another request.
	h.post("commit", `{"session":"s","expected":52}`, request, "r", base, "none")
	h.refuses("commit", `{"copies":[[0,29,2]],"fresh":"\"x"}`, "malformed", 400, request, "r2", base, "r")
	h.refuses("commit", `{"copies":[[0,29,0]]}`, "base-not-found", 412, request, "r3", base, "r")
}

func TestSV11_ADifferenceThatDoesNotFitIsRefused(t *testing.T) {
	h := serve(t, server.Options{MaxRequestBytes: 4096}, nil)
	h.post("create", `{"id":"s"}`)
	whole := `{"session":"s","expected":"any"}`
	h.post("commit", whole, request, "1", base, "none")
	for _, d := range []string{
		`{"copies":[[0,32]]}`, `{"copies":[[0,32,0,0]]}`, `{"copies":[[-1,32,0]]}`, `{"copies":[[0,-1,0]]}`, `{"copies":[[0,1,-1]]}`, `{"copies":[[0,2,-1],[0,1,1]]}`, `{"copies":[[0,33,0]]}`, `{"copies":[[33,0,0]]}`, `{"copies":[[1,32,0]]}`,
		`{"copies":[[0,32,1]]}`, `{"copies":[[0,32,1]],"fresh":"ab"}`, `{"copies":[[9223372036854775807,9223372036854775807,0]]}`, `{"copies":[[0,1,9223372036854775807]],"fresh":"ab"}`,
		`{"copies":[[0,32,0]],"more":1}`, `{"copies":[[0,32,0]]}x`, `{"session":"s"}`, `{"copies":{}}`,
	} {
		h.refuses("commit", d, "malformed", 400, request, "2", base, "1")
	}
	h.refuses("commit", `{"copies":[`+strings.Repeat("[0,32,0],", 200)+`[0,32,0]]}`, "too-large", 413, request, "2", base, "1")
	h.refuses("commit", `{"copies":[[0,32,0]],"fresh":[0,3],"follow":3}`, "request", 400, request, "2", base, "1") // cut off
	h.refuses("commit", whole, "request", 400, base, "none")
	h.refuses("load", `{"session":"s"}`, "request", 400, request, "2", base, "none")
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":1`) {
		t.Error(got)
	}
	h.post("commit", `{"copies":[[0,32,0]]}`, request, "2", base, "1")
}
