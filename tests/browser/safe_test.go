package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
)

// attacks are texts that would run or load something on a page that trusts them.
func attacks(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../cmd/turnstone/page/testdata/attacks.txt")
	must(t, err)
	var out []string
	for line := range strings.Lines(string(data)) {
		out = append(out, strings.ReplaceAll(strings.TrimSuffix(line, "\n"), `\n`, "\n"))
	}
	return out
}

// within are the payloads in which an attack stands in each place that the formats have for a text.
func within(attack string) (out [][]byte) {
	for _, v := range []any{
		attack,
		map[string]any{"content": []any{map[string]any{"type": "text", "text": attack}, map[string]any{"type": "thinking", "thinking": attack}}},
		map[string]any{"content": []any{map[string]any{"type": "tool_use", "id": attack, "name": attack, "input": map[string]any{attack: attack}}}},
		map[string]any{"type": "tool_result", "tool_use_id": attack, "content": attack},
		map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": attack, "data": "aGk="}},
		map[string]any{"image_url": map[string]any{"url": attack}},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		out = append(out, b)
	}
	return append(out, []byte(attack), []byte("```"+attack+"\n"+attack+"\n```"))
}

// The test fails if a page asks another host for anything, opens a dialog, or tells of an exception: see open.
func TestUI2_NothingOfATranscriptRuns(t *testing.T) {
	s := serve(t, "mem:")
	b := open(t, s).signIn(s.tokens["all"])
	all := attacks(t)
	if len(all) < 100 {
		t.Fatalf("%d attacks", len(all))
	}
	const ran = `window.attacked === undefined && document.querySelectorAll("main script, main iframe, main object, main embed, main style, main link, main base, main meta, main form:not([action^='/ui/'])").length === 0`
	for i, attack := range all {
		m := head.Metadata{Name: attack, Model: attack, Cwd: attack, Labels: map[string]string{"attack": strings.ToValidUTF8(attack[:min(len(attack), 200)], "")}}
		p, _, err := s.Create(ctx, turnstone.Request{ID: fmt.Sprint(i, attack), Metadata: m})
		must(t, err)
		a, err := p.PutAttachment(ctx, bytes.NewReader([]byte(attack)), int64(len(attack)), "text/html", attack)
		must(t, err)
		var nodes []turnstone.NewNode
		for _, payload := range within(attack) {
			nodes = append(nodes, turnstone.NewNode{Kind: attack[:min(len(attack), 60)], Payload: payload, Attachments: []blob.Attachment{a}})
		}
		_, err = p.Commit(ctx, turnstone.Commit{Nodes: nodes, Turn: attack, Checkpoint: map[string][]byte{"part": []byte(attack)}, Keep: attack})
		must(t, err)
		_, err = p.ChangeRecords(ctx, turnstone.RecordChange{Key: "k" + attack, Value: []byte(attack)})
		must(t, err)
		for _, page := range []string{"session", "history", "checkpoint"} {
			b.show(page, "id", p.ID())
			b.until(`document.querySelector("h1")`)
			if page == "session" {
				for _, d := range []string{"details.call", "details.thought", ".about", ".menu"} {
					b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`for (const d of document.querySelectorAll(%q)) d.open = true`, d)))
				}
			}
			if !value[bool](b, ran) {
				t.Fatalf("%s: %q got through", page, attack)
			}
		}
	}
	b.show("")
	b.until(ran)
	b.show("records")
	b.until(ran)
	b.click(`a[rel="next"]`, "More")
	b.until(`location.search.includes("after") && ` + ran)
}

// A page of another origin neither reads the pages, nor shows them in a frame, nor makes them act.
func TestUI2_OtherOriginsAreRefused(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	var told atomic.Int64
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/told":
			told.Add(1)
		case "/form":
			fmt.Fprintf(w, `<form method="post" action="%s/ui/act"><input name="do" value="delete"><input name="id" value="trip"><input name="sure" value="yes"><button>Win</button></form>`, s.address)
		case "/frame":
			fmt.Fprintf(w, `<iframe src="%s/ui/session?id=trip"></iframe>`, s.address)
		case "/read":
			fmt.Fprintf(w, `<script>fetch("%s/ui/session?id=trip", {credentials: "include"}).then((r) => r.text()).then((t) => fetch("/told"), () => document.title = "refused")</script>`, s.address)
		}
	}))
	defer hostile.Close()
	other := strings.Replace(hostile.URL, "127.0.0.1", "localhost", 1) // another site
	b := open(t, s)
	b.signIn(s.tokens["all"])
	b.expect(other)
	b.run(chromedp.Navigate(other + "/form"))
	b.click("button", "Win")
	b.has("cross-origin")
	if _, err := p.Info(ctx); err != nil {
		t.Error(err)
	}
	b.run(chromedp.Navigate(other + "/read"))
	b.until(`document.title === "refused"`)
	b.run(chromedp.Navigate(other + "/frame"))
	b.until(`document.querySelector("iframe")`)
	if value[string](b, `(() => { try { return document.querySelector("iframe").contentDocument?.body.innerText ?? ""; } catch { return ""; } })()`) != "" {
		t.Error("the page is shown in a frame of another origin")
	}
	if told.Load() > 0 {
		t.Error("a page of another origin has read the store")
	}
}

func TestUI2_NamesOfOtherHostsAreRefused(t *testing.T) {
	s := serve(t, "mem:")
	for host, want := range map[string]int{"": 401, "localhost": 401, "[::1]:1": 401, "evil.example": 403, "127.0.0.1.evil.example": 403} {
		r, err := http.NewRequest("GET", s.address+"/ui/", nil)
		must(t, err)
		r.Host = host
		a, err := http.DefaultClient.Do(r)
		must(t, err)
		must(t, a.Body.Close())
		if a.StatusCode != want {
			t.Errorf("%q: status %d, want %d", host, a.StatusCode, want)
		}
		for name, want := range map[string]string{"Cache-Control": "no-store", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %q", name, got)
			}
		}
		if policy := a.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("the policy is %q", policy)
		}
	}
}
