package browser

import (
	"os"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// axe (https://github.com/dequelabs/axe-core) finds no barrier for people who can't see well or use no mouse.
func TestUI4_NoBarriers(t *testing.T) {
	script, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		if os.Getenv("TURNSTONE_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("axe is not installed: npm install")
	}
	s := serve(t, demo(t))
	p, err := s.Session(ctx, "trip")
	must(t, err)
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte(conversation)}, turnstone.NewNode{Kind: "user", Payload: []byte(`{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}`)})
	must(t, p.SaveMetadata(ctx, head.Metadata{Labels: map[string]string{"rating": "good"}}))
	_, err = p.ChangeRecords(ctx, turnstone.RecordChange{Key: "queue/mail/1", Value: []byte(`{"to":"somebody"}`)})
	must(t, err)
	b := open(t, s)
	b.show("")
	b.has("Sign in")
	barriers := func(where string) {
		t.Helper()
		b.run(chromedp.Evaluate[chromedp.Void](string(script) + ";0"))
		found, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](`axe.run().then((r) => (r.passes.length < 5 ? ["axe did not run"] : []).concat(r.violations.map((v) => v.impact + ": " + v.help + " " + v.nodes.map((n) => n.html).slice(0, 3).join(" "))))`, chromedp.EvalAwaitPromise))
		must(t, err)
		for _, f := range found {
			t.Errorf("%s: %s", where, f)
		}
	}
	barriers("login")
	b.signIn(s.tokens["all"])
	for _, scheme := range []string{"light", "dark"} {
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		for _, page := range []string{"", "session", "history", "checkpoint", "records", "work", "store", "usage", "search", "help", "diff", "no such page"} {
			b.show(page, "id", "trip", "at", "2")
			b.until(`document.querySelector("h1")`)
			b.run(chromedp.Evaluate[chromedp.Void](`for (const d of document.querySelectorAll("details:not(.menu, .child)")) d.open = true`))
			barriers(scheme + " " + page)
		}
	}
}
