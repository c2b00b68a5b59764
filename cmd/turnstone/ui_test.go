package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// startUI starts `turnstone ui`, and returns the address of its pages and a browser that has given the token.
func startUI(t *testing.T, args ...string) (address string, browser *http.Client) {
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
	return address, browser
}

// posted sends a form, and returns the answer.
func posted(t *testing.T, browser *http.Client, address string, fields ...string) (int, string) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	a, err := browser.PostForm(address, form)
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
			address, browser := startUI(t, args...)
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
