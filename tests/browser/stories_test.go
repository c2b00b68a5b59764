package browser

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// anImage is a picture of one pixel.
var anImage = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82")

func TestUI1_ATokenOpensThePages(t *testing.T) {
	s := serve(t, "mem:")
	s.made(t, turnstone.Request{ID: "trip"}, "hello")
	b := open(t, s)
	b.show("session", "id", "trip")
	b.has("Sign in")
	b.lacks("hello")
	b.fill(`input[name="token"]`, "turnstone_wrong\r")
	b.has("does not know this token")
	b.show("session", "id", "trip")
	b.fill(`input[name="token"]`, s.tokens["read"]+"\r")
	b.has("hello") // It leads to where the visitor wanted to go.
	if value[string](b, "document.cookie") != "" {
		t.Error("scripts can read the cookie")
	}
	b.click("button", "Sign out")
	b.has("Sign in")
	b.show("session", "id", "trip")
	b.has("Sign in")
}

func TestUI1_TheListOfSessionsIsFiltered(t *testing.T) {
	s := serve(t, "mem:")
	for _, name := range []string{"one", "two", "three"} {
		s.made(t, turnstone.Request{ID: name, Metadata: head.Metadata{Name: "The " + name, Group: "app/" + name, Model: "model-" + name, Labels: map[string]string{"stage": name, ".import.format": "agent-" + name}}}, "hello")
	}
	b := open(t, s).signIn(s.tokens["read"])
	b.until(`[...document.querySelectorAll("#rows a.item")].map((a) => a.textContent).join() === "The three,The two,The one"`)
	for field, text := range map[string]string{"q": "TWO", "group": "app/two", "label": "stage=two", "model": "model-two", "agent": "agent-two"} {
		b.show("")
		b.fill(`input[name="`+field+`"]`, text+"\r")
		b.until(`[...document.querySelectorAll("#rows a.item")].map((a) => a.textContent).join() === "The two"`)
	}
	b.show("", "since", time.Now().Add(48*time.Hour).Format("2006-01-02"))
	b.has("No session is like that")
	b.show("", "label", "no label")
	b.has("a label is NAME=VALUE")
	b.click("a", "All sessions")
	b.click("a.item", "The one")
	b.has("hello")
}

func TestUI1_TheListHasPages(t *testing.T) {
	s := serve(t, "mem:")
	for i := range 120 {
		s.made(t, turnstone.Request{ID: fmt.Sprintf("s-%03d", i)})
	}
	b := open(t, s).signIn(s.tokens["read"])
	seen := map[string]bool{}
	for page := 1; ; page++ {
		for _, id := range value[[]string](b, `[...document.querySelectorAll("#rows a.item")].map((a) => a.textContent)`) {
			seen[id] = true
		}
		if !value[bool](b, `!!document.querySelector('a[rel="next"]')`) {
			break
		}
		before := value[string](b, "location.href")
		b.click(`a[rel="next"]`, "More")
		b.until(fmt.Sprintf("location.href !== %q && document.readyState === 'complete'", before))
	}
	if len(seen) != 120 {
		t.Errorf("%d sessions on all pages, want 120", len(seen))
	}
}

func TestUI3_TheListFollows(t *testing.T) {
	s := serve(t, "mem:")
	b := open(t, s).signIn(s.tokens["read"])
	b.has("No session is like that")
	p := s.made(t, turnstone.Request{ID: "old"}, "hello")
	b.has("old")
	must(t, p.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren))
	b.has("No session is like that")
	s.made(t, turnstone.Request{ID: "new"}, "hello")
	b.until(`document.querySelector("#rows a.item").textContent === "new"`)
}

const conversation = `{"role":"assistant","content":[{"type":"thinking","thinking":"I should look first."},{"type":"text","text":"# Plan\n\n| step | done |\n|---|---|\n| look | **yes** |\n\n` + "```go\\nfunc main() { println(1) }\\n```" + `"},{"type":"tool_use","id":"c1","name":"look","input":{"path":"/tmp"}}]}`

func TestUI1_ASessionIsAConversation(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip", Metadata: head.Metadata{Name: "A trip"}}, "What is there?")
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte(conversation)})
	says(t, p, turnstone.NewNode{Kind: "tool", Payload: []byte(`{"type":"tool_result","tool_use_id":"c1","content":"two files"}`)})
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.has("What is there?", "Plan", "Calls look", "its result stands at the call")
	b.lacks("two files", "I should look first") // They are folded.
	for _, selector := range []string{"article h1", "article table td strong", "article pre code .kd"} {
		b.until(fmt.Sprintf("document.querySelector(%q)", selector))
	}
	b.click("summary", "Calls look")
	b.has("two files", `"/tmp"`)
	b.click("summary", "Thoughts")
	b.has("I should look first")
}

func TestUI1_ImagesAndAttachments(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"})
	put := func(data []byte, mediaType, name string) blob.Attachment {
		a, err := p.PutAttachment(ctx, bytes.NewReader(data), int64(len(data)), mediaType, name)
		must(t, err)
		return a
	}
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("see"), Attachments: []blob.Attachment{
		put(anImage, "image/png", "a dot.png"), put([]byte("<script>alert(1)</script>"), "text/html", `../../"page".html`),
	}})
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.until(`document.querySelector("article .attachment img")?.naturalWidth === 1`)
	link := value[string](b, `[...document.querySelectorAll("article .attachment a")].map((a) => a.href).join()`)
	headers := value[string](b, fmt.Sprintf(`(() => { const r = new XMLHttpRequest(); r.open("GET", %q, false); r.send(); return r.getAllResponseHeaders() + r.responseText; })()`, link))
	for _, want := range []string{"content-type: application/octet-stream", `content-disposition: attachment; filename=_page_.html`, "content-security-policy: default-src 'none'; sandbox", "<script>alert(1)</script>"} {
		if !strings.Contains(headers, want) {
			t.Errorf("the answer lacks %s:\n%s", want, headers)
		}
	}
}

func TestUI1_ASubAgentOpensInPlace(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"})
	at := says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte("I ask another one.")})
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("Later.")})
	s.made(t, turnstone.Request{ID: "trip/helper", Parent: "trip", ForkNode: at.Leaf, Detached: true}, "What the helper was asked")
	s.made(t, turnstone.Request{ID: "trip/loose", Parent: "trip", Detached: true}, "What a helper of no message was asked")
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.has("Sub-agent trip/helper", "Sub-agent trip/loose")
	b.lacks("What the helper was asked")
	b.click("summary", "Sub-agent trip/helper")
	b.has("What the helper was asked")
	b.click("a", "Open trip/helper")
	b.until(`document.querySelector("h1").textContent === "trip/helper"`)
}

func TestUI3_AConversationFollows(t *testing.T) {
	s := serve(t, "mem:")
	var said []string
	for i := range 60 {
		said = append(said, fmt.Sprintf("message %d\n\n%s", i, strings.Repeat("word ", 100)))
	}
	p := s.made(t, turnstone.Request{ID: "trip"}, said...)
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.has("message 59")
	b.until("window.scrollY > 0")
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("a new one")})
	b.has("a new one")
	b.until(`document.getElementById("at").max === "61" && document.getElementById("at").value === "61"`)
	b.until("window.innerHeight + window.scrollY > document.body.scrollHeight - 5") // It stays at the end,

	b.run(chromedp.Evaluate[chromedp.Void]("window.scrollTo(0, 100)")) // but not if somebody reads what is above.
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte("another one")}, turnstone.NewNode{Kind: "user", Payload: []byte("and one more")})
	b.until(`document.body.textContent.includes("and one more")`)
	if y := value[float64](b, "window.scrollY"); y > 2000 {
		t.Errorf("the page moved to %v", y)
	}
	r, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefNone()})
	must(t, err)
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("from the beginning")})
	b.until(`document.body.textContent.includes("goes on from elsewhere")`)
	b.click("a", "goes on from elsewhere")
	b.until(fmt.Sprintf(`document.getElementById("at").value === "%d"`, r.Revision+1))
	b.has("from the beginning")
	b.lacks("message 59")
}

func TestUI3_WhatIsOpenedStaysWhereItIs(t *testing.T) {
	s := serve(t, "mem:")
	long := strings.Repeat("word ", 2000)
	p := s.made(t, turnstone.Request{ID: "trip"}, long)
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte(`{"role":"assistant","content":[{"type":"thinking","thinking":"I look.` + strings.Repeat(`\n\nAgain.`, 50) + `"}]}`)})
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.until("window.scrollY > 0 && window.innerHeight + window.scrollY > document.body.scrollHeight - 5")
	y := value[float64](b, "window.scrollY")
	b.click("summary", "Thoughts")
	b.has("I look.")
	b.run(chromedp.Evaluate[chromedp.Void]("new Promise((done) => setTimeout(done, 200))", chromedp.EvalAwaitPromise))
	if now := value[float64](b, "window.scrollY"); now != y {
		t.Errorf("the page moved from %v to %v", y, now)
	}
}

func TestUI1_AnEarlierRevisionIsShown(t *testing.T) {
	s := serve(t, "mem:")
	s.made(t, turnstone.Request{ID: "trip"}, "first", "second", "third")
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.has("third")
	b.run(chromedp.Focus(chromedp.CSS("#at")))
	b.press("\u0302") // arrow to the left
	b.has("This is revision 2, not the newest one")
	b.lacks("third")
	b.click("a", "What came after it")
	b.has("Common: 2 nodes", "third")
	b.show("session", "id", "trip", "at", "1")
	b.lacks("second")
	b.click("a", "Newest")
	b.has("third")
}

func TestUI1_TheHistoryShowsBranches(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "root", "first way")
	root, err := p.Load(ctx, turnstone.Scope{At: 1})
	must(t, err)
	_, err = p.Commit(ctx, turnstone.Commit{Expected: 2, Leaf: turnstone.RefTo(root.Leaf), Turn: "back"})
	must(t, err)
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte("second way")})
	must(t, p.Keep(ctx, "good", 2))
	b := open(t, s).signIn(s.tokens["read"])
	b.show("history", "id", "trip")
	b.has("assistant: second way", "moved the leaf back", "goes on from revision 1", "good", "turn back", "the head")
	b.click("a", "end of a branch")
	b.has("This is another branch", "first way")
	b.lacks("second way")
	b.click("a", "Compare it with the active one")
	b.has("Common: 1 nodes", "Only the first: 1", "first way", "second way")
}

func TestUI5_ASessionIsForkedRewoundAndKept(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first", "second", "third")
	b := open(t, s).signIn(s.tokens["write"])
	b.show("session", "id", "trip")
	b.click("article:nth-of-type(2) .menu summary", "")
	b.fill(`article:nth-of-type(2) input[name="name"]`, "trip/other")
	b.click("article:nth-of-type(2) button", "Fork")
	b.until(`document.querySelector("h1")?.textContent === "trip/other"`)
	b.has("second")
	b.lacks("third")

	b.show("history", "id", "trip")
	b.click("#r-2 .menu summary", "")
	b.fill(`#r-2 form:nth-of-type(3) input[name="name"]`, "good")
	b.click("#r-2 button", "Keep")
	b.has("good")
	kept, err := p.Kept(ctx)
	must(t, err)
	if len(kept) != 1 || kept[0] != (head.Kept{Name: "good", Revision: 2}) {
		t.Error(kept)
	}
	b.click("#r-2 .menu summary", "")
	b.click("#r-2 button", "Keep it no longer")
	b.click("button", "Yes, release")
	b.until(`document.querySelector("h1") && !document.body.textContent.includes("good")`)

	b.click("#r-1 .menu summary", "")
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("fourth")}) // Somebody is faster.
	b.click("#r-1 button", "Go on from here")
	b.has("Conflict")
	b.show("history", "id", "trip")
	b.click("#r-1 .menu summary", "")
	b.click("#r-1 button", "Go on from here")
	b.until(`document.getElementById("conversation")?.textContent.includes("first")`)
	b.lacks("second", "Conflict")
	if i, err := p.Info(ctx); err != nil || i.Revision != 5 || i.Messages != 1 {
		t.Error(i.Revision, i.Messages, err)
	}
}

func TestUI5_ASessionIsNamedLabelledAndDeleted(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	b := open(t, s).signIn(s.tokens["write"])
	b.show("session", "id", "trip")
	b.click("summary", "About this session")
	b.fill(`input[name="called"]`, "To Kyoto\r")
	b.until(`document.querySelector("h1")?.textContent === "To Kyoto"`)
	b.click("summary", "About this session")
	b.fill(`input[name="label"]`, "rating=good\r")
	b.until(`document.querySelector("dl")?.textContent.includes("Label rating")`)
	if i, err := p.Info(ctx); err != nil || i.Name != "To Kyoto" || i.Labels["rating"] != "good" {
		t.Error(i.Name, i.Labels, err)
	}
	b.click("summary", "About this session")
	b.click("button", "Delete the session")
	b.has("Are you sure?")
	b.click("a", "No")
	b.click("summary", "About this session")
	b.click("button", "Delete the session")
	b.click("button", "Yes, delete")
	b.has("No session is like that")
	if _, err := s.Session(ctx, "trip"); err == nil {
		t.Error("the session is still there")
	}
}

func TestUI5_AMessageIsHiddenAndErased(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := serve(t, dir)
	secret := "thesecretthatmustgo"
	p := s.made(t, turnstone.Request{ID: "trip"}, "first", secret, "third", "fourth")
	b := open(t, s).signIn(s.tokens["all"])
	b.show("search", "q", secret) // From here on the index has its words.
	b.until(`document.querySelector("mark")`)
	b.show("session", "id", "trip")
	b.click("article:nth-of-type(4) .menu summary", "")
	b.click("article:nth-of-type(4) button", "Hide")
	b.has("Are you sure?")
	b.click("button", "Yes, tombstone")
	b.has("third")
	b.lacks("fourth")
	b.click("article:nth-of-type(2) .menu summary", "")
	b.click("article:nth-of-type(2) button", "Erase")
	b.has("Are you sure?", "Nothing brings it back")
	b.click("button", "Yes, erase")
	b.has("Erased", "Still shown by", "nobody")
	b.show("session", "id", "trip")
	b.has("first", "third")
	b.lacks(secret)
	if nodes, err := p.Load(ctx, turnstone.Scope{}); err != nil || len(nodes.Nodes) != 2 {
		t.Error(len(nodes.Nodes), err)
	}
	must(t, filepath.WalkDir(filepath.Dir(dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s has what was erased", path)
		}
		return err
	}))
}

func TestUI5_WhoMayOnlyReadChangesNothing(t *testing.T) {
	for name, args := range map[string][]string{"token": nil, "pages": {"--ui-read-only"}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "mem:", args...)
			p := s.made(t, turnstone.Request{ID: "trip"}, "first", "second")
			b := open(t, s)
			if name == "token" {
				b.signIn(s.tokens["read"])
			} else {
				b.signIn(s.tokens["all"])
			}
			leaf, err := p.Load(ctx, turnstone.Scope{})
			must(t, err)
			for _, page := range []string{"session", "history"} {
				b.show(page, "id", "trip")
				b.has("second")
				if value[int](b, `document.querySelectorAll("form[action='/ui/act']").length`) > 0 {
					t.Errorf("%s offers changes", page)
				}
			}
			for _, do := range []string{"fork", "rewind", "keep", "release", "label", "tombstone", "erase", "delete"} {
				status := value[int](b, fmt.Sprintf(`(() => { const r = new XMLHttpRequest(); r.open("POST", "/ui/act", false); r.setRequestHeader("Content-Type", "application/x-www-form-urlencoded"); r.send("do=%s&id=trip&sure=yes&revision=2&name=x&called=x&node=%s"); return r.status; })()`, do, leaf.Leaf))
				if status != 403 {
					t.Errorf("%s: status %d", do, status)
				}
			}
			i, err := p.Info(ctx)
			if err != nil || i.Revision != 2 || i.Messages != 2 || i.Name != "" {
				t.Error(i, err)
			}
		})
	}
}

func TestUI1_CheckpointsAndTheirDifference(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	for _, part := range []string{`{"city":"Kyoto","days":3}`, `{"city":"Nara","days":3}`} {
		_, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"plan": []byte(part)}})
		must(t, err)
	}
	b := open(t, s).signIn(s.tokens["read"])
	b.show("checkpoint", "id", "trip")
	b.click("summary", "plan")
	b.has(`"Nara"`)
	b.show("history", "id", "trip")
	b.fill(`input[name="at"]`, "2")
	b.fill(`input[name="withat"]`, "3\r")
	b.has("Common: 1 nodes", `-  "city": "Kyoto"`, `+  "city": "Nara"`)

	s.made(t, turnstone.Request{ID: "other", Parent: "trip", ForkAt: 1}, "of the other")
	b.signOut()
	b.signIn(s.tokens["all"])
	b.show("diff", "id", "trip", "with", "other")
	b.has("Only the second: 1", "of the other")
	b.until(`[...document.querySelectorAll(".sides > div:last-child form")].every((f) => f.elements.id.value === "other") && document.querySelector(".sides > div:last-child form")`)
}

func TestUI1_RecordsAreShown(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	_, err := p.ChangeRecords(ctx, turnstone.RecordChange{Key: "queue/mail/1", Value: []byte(`{"to":"somebody"}`)}, turnstone.RecordChange{Key: "state", Value: []byte{0, 1, 2, 255}})
	must(t, err)
	b := open(t, s).signIn(s.tokens["read"])
	for _, query := range [][]string{{}, {"id", "trip"}} {
		b.show("records", query...)
		b.has("queue/mail/1", "state")
		b.click("summary", "state")
		b.has("00 01 02 ff")
		b.click("a", "queues")
		b.until(`!document.querySelector("main").textContent.includes("state")`)
		b.click("summary", "queue/mail/1")
		b.has("somebody")
	}
}

func TestUI1_QueuesAndLeasesAreShown(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	_, err := p.ChangeRecords(ctx, queue.Put("mail & more", []byte(`{"to":"somebody"}`)), queue.PutWith("mail & more", []byte("tomorrow"), queue.PutOptions{NotBefore: time.Now().Add(24 * time.Hour)}), turnstone.RecordChange{Key: "state", Value: []byte("none")})
	must(t, err)
	_, err = lease.Acquire(ctx, p, "worker", lease.Options{Holder: "host-1", TTL: time.Hour})
	must(t, err)
	ended, err := lease.Acquire(ctx, p, "ended", lease.Options{Holder: "host-2", TTL: time.Millisecond})
	must(t, err)
	must(t, ended.Err(nil))
	b := open(t, s).signIn(s.tokens["read"])
	b.show("session", "id", "trip")
	b.click("nav a", "Queues and leases")
	b.has("Queue mail & more", "free", "for later", "worker", "host-1", "held until", "host-2", "ended")
	b.lacks("claimed", "state")
	b.click("summary", "17 B")
	b.has("somebody")
	_, err = queue.Claim(ctx, p, "mail & more", lease.Options{Holder: "host-3", TTL: time.Hour})
	must(t, err)
	b.show("work", "id", "trip")
	b.has("claimed by host-3 until")
	// Whatever other records there are, the others are shown.
	_, err = p.ChangeRecords(ctx, turnstone.RecordChange{Key: "queue/" + strings.Repeat("ä", 200) + "/x", Value: []byte("long")},
		turnstone.RecordChange{Key: strings.Repeat("k", turnstone.MaxRecordKey), Value: []byte("{}")},
		turnstone.RecordChange{Key: "queue/other/x", Value: bytes.Repeat([]byte("much "), 10_000)}, turnstone.RecordChange{Key: ".queue/other/x", Value: []byte("junk")})
	must(t, err)
	b.show("work", "id", "trip")
	b.has("claimed by host-3 until", "host-1", "Queue other", "the record is of no lease")
	b.lacks("much much")
	s.made(t, turnstone.Request{ID: "idle"}, "first")
	b.show("work", "id", "idle")
	b.has("No queue has a message", "None.")
}

func TestUI1_NamespacesHavePagesOfTheirOwn(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "store"))
	s.made(t, turnstone.Request{ID: "ours"}, "A museum of ours.")
	c, err := client.Open(ctx, s.address, &client.Options{Token: s.tokens["all"], Namespace: "team/a"})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	theirs, _, err := c.Create(ctx, turnstone.Request{ID: "theirs"})
	must(t, err)
	_, err = theirs.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("A museum of theirs.")}}, Usage: []head.Usage{{Model: "model-of-theirs", Input: 7}}})
	must(t, err)
	b := open(t, s).signIn(s.tokens["read"])
	for _, space := range []string{"team/a", "", "team/a"} {
		mine, other := "theirs", "ours"
		if space == "" {
			mine, other = other, mine
		}
		b.show("search", "q", "museum", "ns", space)
		b.has("museum of " + mine)
		b.lacks("museum of " + other)
		b.show("usage", "ns", space)
		b.until(`document.querySelectorAll("img.chart").length === 2 && [...document.querySelectorAll("img.chart")].every((i) => i.naturalWidth > 100)`)
		if b.has(time.Now().Format("2006-01-02")); space == "" {
			b.lacks("model-of-theirs")
		} else {
			b.has("model-of-theirs")
		}
	}
}

func TestUI1_TheStoreIsShown(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "trip"}, "first")
	_, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Usage: []head.Usage{{Model: "model-1", Input: 1234567, Output: 7, Cost: 1_500_000_000}}})
	must(t, err)
	b := open(t, s).signIn(s.tokens["all"])
	b.click("nav a", "Store")
	b.has("Commits", "model-1", "1,234,567", "1.5000", "Last scrub", "never")
	for _, do := range []string{"Verify", "Collect", "Vacuum"} {
		b.click("button", do)
		if do != "Verify" {
			b.click("button", "Yes, "+strings.ToLower(do))
		}
		b.has("Report: " + strings.ToLower(do))
		if do == "Verify" {
			b.has(`"problems": []`)
		}
		b.click("main a", "The store")
	}
	b.has("verify", "vacuum", "records 1")
	b.until(`document.querySelector("img.chart").naturalWidth > 100`)
	b.click("nav a", "Usage")
	b.has("model-1", "1,234,567", time.Now().Format("2006-01-02"))
	b.until(`document.querySelector("img.chart").naturalWidth > 100`)
}

func TestUI1_MessagesAreFound(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "store"))
	p := s.made(t, turnstone.Request{ID: "trip", Metadata: head.Metadata{Name: "A trip"}}, "Where is a museum?", "The <b>museum</b> of Kyoto.")
	says(t, p, turnstone.NewNode{Kind: "user", Payload: []byte("Thanks.")})
	b := open(t, s).signIn(s.tokens["read"])
	b.press("/")
	b.run(chromedp.Blur(chromedp.CSS("#search")))
	b.click("nav a", "Search")
	b.fill("#search", "museum kyo*\r")
	b.has("The <b>museum</b> of Kyoto.")
	b.until(`[...document.querySelectorAll("mark")].map((m) => m.textContent).join() === "museum,Kyoto"`)
	b.lacks("Where is")
	b.click("a.item", "A trip")
	b.has("Thanks.")
	b.show("search", "q", "nowhere")
	b.has("Nothing is found")
	b.show("search", "q", "colour:red")
	b.has("there is no field colour")
}

func TestUI4_Keys(t *testing.T) {
	s := serve(t, "mem:")
	s.made(t, turnstone.Request{ID: "one"}, "hello")
	p := s.made(t, turnstone.Request{ID: "two"}, "hello")
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte(conversation)})
	b := open(t, s).signIn(s.tokens["read"])
	b.press("/")
	b.until(`document.activeElement.id === "search"`)
	b.run(chromedp.Blur(chromedp.CSS("#search")))
	b.press("j")
	b.press("j")
	b.until(`document.querySelector("tr.chosen a").textContent === "one"`)
	b.press("k")
	b.press("\r")
	b.until(`document.querySelector("h1").textContent === "two"`)
	b.press("G")
	b.until(`document.querySelector("article.chosen")?.textContent.includes("Plan")`)
	b.lacks("I should look first")
	b.press("\r")
	b.has("I should look first")
	b.press("g")
	b.until(`document.querySelector("article.chosen")?.textContent.includes("hello")`)
	b.press("?")
	b.has("go to the search field")
}

func TestUI4_DarkAndSmall(t *testing.T) {
	s := serve(t, "mem:")
	p := s.made(t, turnstone.Request{ID: "a-session-with-a-long-id-" + strings.Repeat("x", 60)}, "hello "+strings.Repeat("unbroken", 60))
	says(t, p, turnstone.NewNode{Kind: "assistant", Payload: []byte(conversation)})
	b := open(t, s)
	b.run(chromedp.EmulateViewport(375, 800))
	b.signIn(s.tokens["all"])
	for _, page := range []string{"", "session", "history", "checkpoint", "records", "store", "help"} {
		b.show(page, "id", p.ID())
		if wide := value[float64](b, "document.documentElement.scrollWidth"); wide > 375 {
			t.Errorf("%q is %v pixels wide on a telephone", page, wide)
		}
	}
	light := value[string](b, "getComputedStyle(document.body).backgroundColor")
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
	if dark := value[string](b, "getComputedStyle(document.body).backgroundColor"); dark == light {
		t.Errorf("dark is %s as light", dark)
	}
	b.show("session", "id", p.ID())
}

func TestUI1_ALinkCanBeSent(t *testing.T) {
	s := serve(t, "mem:")
	s.made(t, turnstone.Request{ID: "a/b c?d&e=%"}, "first", "second")
	b := open(t, s).signIn(s.tokens["read"])
	b.click("a.item", "a/b c")
	b.has("second")
	b.click("nav a", "History")
	b.click("a.item", "Revision 1")
	b.has("This is revision 1")
	link := value[string](b, "location.href")
	other := open(t, s).signIn(s.tokens["read"])
	other.run(chromedp.Navigate(link))
	other.has("This is revision 1", "first")
	other.lacks("second")
}

func TestUI1_WithoutTheScript(t *testing.T) {
	s := serve(t, "mem:")
	s.made(t, turnstone.Request{ID: "trip"}, "first", "second")
	b := open(t, s).signIn(s.tokens["read"])
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.show("session", "id", "trip", "at", "1")
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{})
	b.has("first", "This is revision 1")
}

func TestUI1_ThePagesOfTheDemo(t *testing.T) {
	s := serve(t, demo(t))
	b := open(t, s).signIn(s.tokens["all"])
	b.has("trip/train")
	b.show("history", "id", "trip")
	b.has("the head")
	b.show("session", "id", "trip")
	b.until(`document.querySelectorAll("article").length > 3`)
}

// Two tabs of the chat of examples/agent-service see each other, and the reply is streamed.
func TestTheChatOfTheExample(t *testing.T) {
	service := filepath.Join(t.TempDir(), "service")
	build := exec.Command("go", "build", "-o", service, ".")
	build.Dir = "../../examples/agent-service"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(service, "-addr", "127.0.0.1:0", "-data", t.TempDir(), "-pace", "200ms")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	address := strings.TrimSpace(strings.TrimPrefix(line, "serving on "))
	one := open(t, &served{address: address})
	one.run(chromedp.Navigate(address + "/"))
	one.until(`location.hash.length > 5`)
	other := open(t, &served{address: address})
	other.run(chromedp.Navigate(value[string](one, "location.href")))
	other.until(`document.readyState === "complete"`)
	one.fill("#text", "add 2 3\r")
	other.has("user: add 2 3") // before there is a reply
	one.until(`/assistant: .*5/.test(document.body.innerText)`)
	other.until(`/assistant: .*5/.test(document.body.innerText)`)
	other.fill("#text", "<b>hello</b>\r")
	one.has("user: <b>hello</b>")
	for _, b := range []*tab{one, other} {
		b.until(`document.querySelectorAll("#messages p").length === 4`)
	}
}
