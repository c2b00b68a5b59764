package browser

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/server"
)

var ctx = context.Background()

// browser is the one that all tests use, and command the built command.
var (
	browser context.Context
	command string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("TURNSTONE_TEST_REQUIRE") != "" {
			fmt.Fprintln(os.Stderr, "there is no chromium")
			return 1
		}
		fmt.Println("skipped: there is no chromium")
		return 0
	}
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	command = filepath.Join(dir, "turnstone")
	build := exec.Command("go", "build", "-o", command, "./cmd/turnstone")
	build.Dir = "../.." // the module of the command
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(time.Minute))
	allocator, end := chromedp.NewExecAllocator(ctx, options...)
	defer end()
	var quit context.CancelFunc
	browser, quit = chromedp.NewContext(allocator)
	defer quit()
	if _, err := chromedp.Run(browser, chromedp.Location()); err != nil {
		fmt.Fprintln(os.Stderr, "chromium:", err)
		return 1
	}
	return m.Run()
}

// A served is a server with pages, and a client that writes to it.
type served struct {
	address string
	tokens  map[string]string // by what they are for
	*client.Client
}

// serve serves the store at a URL, with pages.
func serve(t *testing.T, url string, args ...string) *served {
	t.Helper()
	s := &served{tokens: map[string]string{}}
	var lines strings.Builder
	for name, scopes := range map[string][]server.Scope{"all": {server.Read, server.Write, server.Maintain}, "write": {server.Read, server.Write}, "read": {server.Read}} {
		token, line, err := server.NewToken(server.Grant{Name: name, Scopes: scopes, Namespaces: []string{"*"}})
		must(t, err)
		s.tokens[name] = token
		fmt.Fprintln(&lines, line)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	c := exec.Command(command, append([]string{"serve", "--ui", "--store", url, "--listen", "127.0.0.1:0", "--tokens", file}, args...)...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill() // The store is in memory, or goes with the directory of the test.
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	_, s.address, _ = strings.Cut(strings.TrimSpace(line), " on ")
	s.Client, err = client.Open(ctx, s.address, &client.Options{Token: s.tokens["all"]})
	must(t, err)
	t.Cleanup(func() { s.Client.Close() })
	return s
}

// A tab is a tab of a browser that shares nothing with other tabs.
type tab struct {
	*testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	problems []string
	requests []string
	dialogs  int
	other    string // an origin that the tab may ask, too; then problems are not told
}

// expect lets the tab ask another origin, whose pages have problems.
func (b *tab) expect(origin string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.other = origin
}

// open opens a tab on a server.
func open(t *testing.T, s *served) *tab {
	t.Helper()
	c, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	limited, cancel := context.WithTimeout(c, 2*time.Minute)
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: limited, base: s.address}
	must(t, chromedp.Listen(c, b.hear))
	call(b, network.Enable, network.EnableParams{})
	t.Cleanup(func() { // before the tab is closed
		b.picture()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			if b.other == "" {
				t.Error("the browser says:", p)
			}
		}
		for _, r := range b.requests {
			if !strings.HasPrefix(r, s.address+"/") && (b.other == "" || !strings.HasPrefix(r, b.other+"/")) && !strings.HasPrefix(r, "data:image/") && r != "about:blank" {
				t.Error("the page asks for", r)
			}
			for name, token := range s.tokens {
				if strings.Contains(r, token) {
					t.Error("the token", name, "is in a URL:", r)
				}
			}
		}
		if b.dialogs > 0 {
			t.Error("a dialog was opened")
		}
	})
	return b
}

// hear remembers what the browser tells of a tab.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception.Description))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork { // A status such as 404 is told as an error of the network.
			b.problems = append(b.problems, fmt.Sprint(e.Entry.Source, ": ", e.Entry.Text))
		}
	case *page.EventJavascriptDialogOpening:
		b.dialogs++
		go func() { // Until it is closed, nothing else goes on.
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	}
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	must(b.T, chromedp.Do(b.ctx, actions...))
}

// call sends a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], parameters P) R {
	b.Helper()
	r, err := chromedp.Call(b.ctx, command, parameters)
	must(b.T, err)
	return r
}

// picture keeps a picture of the tab.
func (b *tab) picture() {
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Log("no picture:", err)
		return
	}
	must(b.T, os.WriteFile(filepath.Join(b.ArtifactDir(), strings.ReplaceAll(b.Name(), "/", "_")+".png"), image, 0o644))
}

// signIn gives a token.
func (b *tab) signIn(token string) *tab {
	b.Helper()
	b.run(chromedp.Navigate(b.base+"/ui/"), chromedp.SendKeys(chromedp.CSS(`input[name="token"]`), token+"\r"), chromedp.WaitVisible(`.home`))
	b.until(`document.querySelector("form.login") === null`)
	return b
}

// signOut ends the visit.
func (b *tab) signOut() {
	b.Helper()
	b.click("button", "Sign out")
	b.has("Sign in")
}

// show shows a page.
func (b *tab) show(path string, query ...string) {
	b.Helper()
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	b.run(chromedp.Navigate(b.base + "/ui/" + path + "?" + q.Encode()))
}

// click clicks on the first element of a selector (CSS) that has a text, when it does not move any more.
func (b *tab) click(selector, text string) {
	b.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%q)].find((e) => e.textContent.includes(%q) && e.checkVisibility())`, selector, text)
	b.until(find)
	b.run(chromedp.ScrollIntoView(chromedp.JSPath(find)))
	b.until(fmt.Sprintf(`((was) => (window.clickedAt = JSON.stringify(%s?.getBoundingClientRect())) === was)(window.clickedAt)`, find))
	b.run(chromedp.Click(chromedp.JSPath(find)))
}

// fill types a text into a field, in place of what it has.
func (b *tab) fill(selector, text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.querySelector(%q)?.checkVisibility() && ((document.querySelector(%q).value = ""), true)`, selector, selector))
	b.run(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// press presses keys.
func (b *tab) press(keys string) {
	b.Helper()
	b.run(chromedp.KeyEvent(keys))
}

// value returns what a script evaluates to.
func value[V any](b *tab, script string) V {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](script))
	must(b.T, err)
	return v
}

// until waits until the page is loaded and a script is true.
func (b *tab) until(script string) {
	b.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("document.readyState === 'complete' && !!("+script+")")); err == nil && is {
			return
		}
	}
	now, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector("main")?.innerText.slice(-1500) ?? ""`)) // It only helps to see why.
	b.Fatalf("it did not come to this: %s\nThe page ends with:\n%v", script, now)
}

// has waits until the page has a text.
func (b *tab) has(texts ...string) {
	b.Helper()
	for _, text := range texts {
		b.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
	}
}

// lacks fails if the page has a text.
func (b *tab) lacks(texts ...string) {
	b.Helper()
	for _, text := range texts {
		if value[bool](b, fmt.Sprintf(`document.body.innerText.includes(%q)`, text)) {
			b.Errorf("the page has %q", text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// made makes a session whose nodes say the given texts, one in each commit.
func (s *served) made(t *testing.T, r turnstone.Request, said ...string) turnstone.Persistence {
	t.Helper()
	p, _, err := s.Create(ctx, r)
	must(t, err)
	for i, text := range said {
		kind := []string{"user", "assistant"}[i%2]
		says(t, p, turnstone.NewNode{Kind: kind, Payload: []byte(text)})
	}
	return p
}

// says commits nodes.
func says(t *testing.T, p turnstone.Persistence, nodes ...turnstone.NewNode) turnstone.Result {
	t.Helper()
	r, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: nodes})
	must(t, err)
	return r
}
