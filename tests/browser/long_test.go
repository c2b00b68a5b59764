package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/turnstonedb/turnstone"
)

// Only a part of a long conversation is on the page, and what comes into sight is there. Somebody writes meanwhile.
func TestUI1_ALongConversationIsScrolled(t *testing.T) {
	const messages = 20_000
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "long"})
	for from := 0; from < messages; from += 500 {
		var nodes []turnstone.NewNode
		for i := range 500 {
			n := from + i
			nodes = append(nodes, turnstone.NewNode{Kind: []string{"user", "assistant"}[n%2], Payload: fmt.Appendf(nil, "number %d.\n\n%s", n, strings.Repeat("Some words that are said. ", 1+n%37))})
		}
		says(t, p, nodes...)
	}
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				if _, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Appendf(nil, "meanwhile %d", i)}}}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	b := open(t, s).signIn(s.tokens["read"])
	for range 3 {
		b.show("session", "id", "long")
		b.until(`performance.getEntriesByName("first-contentful-paint").length > 0`)
		t.Logf("first paint after %.0f ms, answer after %.0f ms", value[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`), value[float64](b, `performance.getEntriesByType("navigation")[0].responseEnd`))
	}
	b.has("meanwhile")
	b.until(`document.querySelectorAll("article").length < 2000`)
	// What is in the middle of the window is a message, wherever somebody goes.
	const middle = `(() => { const e = document.elementFromPoint(300, 450); return /number (\d+)/.exec(e?.closest("article")?.textContent ?? "")?.[1] ?? ""; })()`
	last := -1
	for _, part := range []float64{0, 0.1, 0.5, 0.77, 0.98} {
		b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`window.scrollTo(0, document.body.scrollHeight * %v)`, part)))
		b.until(middle + ` !== ""`)
		time.Sleep(300 * time.Millisecond) // What is near comes, and moves nothing that is in sight.
		b.until(middle + ` !== ""`)
		var n int
		_, err := fmt.Sscan(value[string](b, middle), &n)
		must(t, err)
		if n <= last {
			t.Errorf("at %v is number %d, and before that was %d", part, n, last)
		}
		last = n
		if articles := value[int](b, `document.querySelectorAll("article").length`); articles > 3000 {
			t.Errorf("%d messages are on the page", articles)
		}
	}
	// A link leads to any of them.
	in, err := p.Load(ctx, turnstone.Scope{At: 20, Last: 1})
	must(t, err)
	b.run(chromedp.Navigate(fmt.Sprintf("%s/ui/session?id=long&around=%s#n-%s", s.address, in.Leaf, in.Leaf.String()[:12])))
	b.until(`document.querySelector("article.chosen")?.textContent.includes("number 9999.") && document.querySelector("article.chosen").getBoundingClientRect().top > 0 && document.querySelector("article.chosen").getBoundingClientRect().top < innerHeight`)
	// One after another they are all there, in order.
	b.show("session", "id", "long")
	b.has("meanwhile")
	b.run(chromedp.Evaluate[chromedp.Void](`window.scrollTo(0, 0)`))
	seen, y := -1, -1.0
	for seen < 400 {
		b.until(middle + ` !== ""`)
		numbers := value[[]int](b, `[...document.querySelectorAll("article")].filter((a) => { const r = a.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight; }).map((a) => Number(/number (\d+)/.exec(a.textContent)[1]))`)
		for _, n := range numbers {
			if n > seen+1 {
				t.Fatalf("after number %d comes number %d", seen, n)
			}
			seen = max(seen, n)
		}
		b.run(chromedp.Evaluate[chromedp.Void](`window.scrollBy(0, 500)`))
		now := value[float64](b, "window.scrollY")
		if now == y {
			t.Fatalf("the page does not go on at number %d", seen)
		}
		y = now
	}
}
