package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// startUI starts `turnstone ui`, and returns the address of its pages, a browser that has given the token, and the token.
func startUI(t *testing.T, args ...string) (address string, browser *http.Client, token string) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	c.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait() // It was killed.
	})
	said := map[string]string{}
	lines := bufio.NewScanner(out)
	for _, begin := range []string{"the token is ", "open ", "serving "} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), begin) {
			t.Fatalf("%q: want %q", lines.Text(), begin)
		}
		said[begin] = strings.Fields(strings.TrimPrefix(lines.Text(), begin))[0]
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser = &http.Client{Jar: jar}
	address = said["open "] + "ui/"
	if status, text := posted(t, browser, address+"login", "token", said["the token is "]); status != http.StatusOK || !strings.Contains(text, "<h1>Sessions</h1>") {
		t.Fatalf("%d %s", status, text)
	}
	return address, browser, said["the token is "]
}

// answered returns the status and the text of an answer.
func answered(t *testing.T, a *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// posted sends a form, and returns the answer.
func posted(t *testing.T, browser *http.Client, address string, fields ...string) (int, string) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	a, err := browser.PostForm(address, form)
	return answered(t, a, err)
}

// `turnstone ui` shows the store to who has the token that it prints, and with --read-only it changes nothing.
func TestUI5_TheCommandShowsTheStore(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	for _, readOnly := range []bool{false, true} {
		t.Run(fmt.Sprint(readOnly), func(t *testing.T) {
			args := []string{"--store", store}
			if readOnly {
				args = append(args, "--read-only")
			}
			address, browser, _ := startUI(t, args...)
			status, text := posted(t, browser, address+"act", "do", "label", "id", "chat", "called", "A new name")
			if want := map[bool]int{false: 200, true: 403}[readOnly]; status != want {
				t.Errorf("status %d, want %d: %s", status, want, text)
			}
		})
	}
	if _, errs, ok := turnstoneCmd(t, "ui", "--store", t.TempDir()+"/none"); ok || !strings.Contains(errs, "no store") {
		t.Errorf("a store that is not there: %s", errs)
	}
	for _, args := range [][]string{{"serve", "--ui"}, {"serve", "--ui-read-only"}, {"serve", "--ui", "--stdio"}, {"ui", "--listen", "0.0.0.0:0"}} {
		if _, errs, ok := turnstoneCmd(t, append(args, "--store", store)...); ok {
			t.Errorf("%v is accepted: %s", args, errs)
		}
	}
}

// What somebody else deletes over HTTP is out of the index soon, without a search.
func TestSE4_AServerWithPagesForgetsWhatIsDeleted(t *testing.T) {
	dir := t.TempDir()
	must(t, "import", write(t, "chat.jsonl", lines), "--store", dir+"/store")
	address, browser, token := startUI(t, "--store", dir+"/store")
	for _, namespace := range []string{"", "team/a"} {
		c, err := client.Open(t.Context(), strings.TrimSuffix(address, "/ui/"), &client.Options{Token: token, Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, id := range []string{"a", "b"} {
			s, _, err := c.Create(t.Context(), turnstone.Request{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(t.Context(), turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("qzsecret" + id)}}}); err != nil {
				t.Fatal(err)
			}
		}
		if status, text := got(t, browser, address+"search?q=qzsecret*&ns="+url.QueryEscape(namespace)); status != http.StatusOK || strings.Count(text, "qzsecret") < 2 {
			t.Fatalf("%d %s", status, text)
		}
		within := func(word string) bool {
			files, err := filepath.Glob(indexOf(dir+"/store"+indexSuffix, namespace) + "*")
			if err != nil || len(files) == 0 {
				t.Fatal(err, files)
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if bytes.Contains(data, []byte(word)) {
					return true
				}
			}
			return false
		}
		if !within("qzsecreta") {
			t.Fatal("the word is not in the index: the test can't fail")
		}
		if _, err := c.Erase(t.Context(), "a", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the word is out of the index", func() bool { return !within("qzsecreta") })
		if !within("qzsecret") {
			t.Error("the other word is gone as well")
		}
	}
}

// got returns the answer of an address.
func got(t *testing.T, browser *http.Client, address string) (int, string) {
	t.Helper()
	a, err := browser.Get(address)
	return answered(t, a, err)
}

// Namespaces whose names are alike, or too long for a file, have indexes of their own.
func TestUI1_EachNamespaceHasItsIndex(t *testing.T) {
	dir := t.TempDir()
	must(t, "import", write(t, "chat.jsonl", lines), "--store", dir+"/store")
	address, browser, token := startUI(t, "--store", dir+"/store")
	all := []string{"a-wal", "a", "A", "..", "a/b", strings.Repeat("n", turnstone.MaxNamespace)}
	for _, namespace := range all {
		c, err := client.Open(t.Context(), strings.TrimSuffix(address, "/ui/"), &client.Options{Token: token, Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, _, err := c.Create(t.Context(), turnstone.Request{ID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("a word of " + hex.EncodeToString([]byte(namespace))[:2] + fmt.Sprint(len(namespace)))}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, namespace := range all {
			want := hex.EncodeToString([]byte(namespace))[:2] + fmt.Sprint(len(namespace))
			if status, text := got(t, browser, address+"search?q=word&ns="+url.QueryEscape(namespace)); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%.20q: %d %s", namespace, status, text)
			}
		}
	}
}

// Whatever becomes of a call that hides or deletes something, the index is brought up to date.
func TestSE4_PartsOfACallAreForgotten(t *testing.T) {
	asked := make(chan string, 10)
	fs := &finders{ctx: t.Context(), log: slog.Default(), all: map[string]*heldFinder{}, poked: map[string]bool{}, path: func(namespace string) string {
		asked <- namespace
		return t.TempDir() + "/none"
	}}
	for _, name := range []string{turnstone.OpTombstone, turnstone.OpDelete, turnstone.OpPrune, turnstone.OpVacuum, turnstone.OpUnbundle} {
		for _, err := range []error{nil, turnstone.ErrOutcomeUnknown} {
			_, end := watching{fs, name}.Begin(t.Context(), turnstone.Operation{Name: name})
			end(turnstone.Outcome{Err: err})
			if got := <-asked; got != name {
				t.Errorf("%s, want %s", got, name)
			}
			fs.poking.Wait()
		}
	}
	if _, end := (watching{fs, ""}).Begin(t.Context(), turnstone.Operation{Name: turnstone.OpLoad}); end != nil {
		t.Error("a load is watched")
	}
	if err := fs.Close(); err != nil {
		t.Error(err)
	}
}
