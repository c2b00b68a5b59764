package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// The test binary is the service when this is set.
func TestMain(m *testing.M) {
	if os.Getenv("AGENT_SERVICE") != "" {
		main()
		return
	}
	os.Exit(pgtest.Main(m))
}

// A server is the service as a process.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: exec.Command(os.Args[0], append([]string{"-addr", "127.0.0.1:0"}, args...)...)}
	s.cmd.Env = append(os.Environ(), "AGENT_SERVICE=1")
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.stop(syscall.SIGKILL)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s.url = strings.TrimSpace(strings.TrimPrefix(line, "serving on "))
	return s
}

func (s *server) stop(sig syscall.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil {
		return err
	}
	return s.cmd.Wait()
}

// do sends a request and decodes the reply.
func (s *server) do(method, path string, body any, into any) int {
	s.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		in = bytes.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		in = bytes.NewReader(data)
	}
	r, err := http.NewRequest(method, s.url+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "text/plain")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if raw, ok := into.(*[]byte); ok {
		*raw = data
	} else if err == nil && into != nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v: %s", method, path, err, data)
	}
	return resp.StatusCode
}

func (s *server) chat(title string) string {
	s.t.Helper()
	var c chat
	if status := s.do("POST", "/chats", map[string]string{"title": title}, &c); status != http.StatusCreated {
		s.t.Fatalf("status %d", status)
	}
	return c.ID
}

// A turn is what a post got.
type turn struct {
	status  int
	claimed uint64
	words   []string
	done    uint64
	failed  string
	head    uint64 // of a 409
}

func (tu *turn) text() string { return strings.Join(tu.words, "") }

// post sends a message and reads the stream, and calls each for every word.
func (s *server) post(chat string, body map[string]any, key string, each func(word string)) (tu turn, err error) {
	data, err := json.Marshal(body)
	if err != nil {
		return tu, err
	}
	r, err := http.NewRequest("POST", s.url+"/chats/"+chat+"/messages", bytes.NewReader(data))
	if err != nil {
		return tu, err
	}
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return tu, err
	}
	defer resp.Body.Close()
	tu.status = resp.StatusCode
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		var e struct {
			Claimed, Done, Revision uint64
			Delta, Error            string
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return tu, fmt.Errorf("%w: %s", err, lines.Text())
		}
		tu.claimed, tu.done, tu.head = max(tu.claimed, e.Claimed), max(tu.done, e.Done), max(tu.head, e.Revision)
		if e.Error != "" {
			tu.failed = e.Error
		}
		if e.Delta != "" {
			tu.words = append(tu.words, e.Delta)
			if each != nil {
				each(e.Delta)
			}
		}
	}
	return tu, lines.Err()
}

func (s *server) ask(chat, text string) turn {
	s.t.Helper()
	tu, err := s.post(chat, map[string]any{"text": text}, "", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return tu
}

type transcript struct {
	Revision uint64
	Messages []struct {
		Revision    uint64
		Message     message
		Attachments []attachment
	}
}

func (s *server) history(chat string) (h transcript) {
	s.t.Helper()
	if status := s.do("GET", "/chats/"+chat, nil, &h); status != http.StatusOK {
		s.t.Fatalf("status %d", status)
	}
	return h
}

func TestTurns(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "1ms")
	id := s.chat("first")
	tu := s.ask(id, "hello there")
	if tu.status != 200 || tu.claimed != 1 || tu.done != 2 || len(tu.words) < 5 || tu.text() != `You said "hello there". That was question 1 of this chat.` {
		t.Errorf("%+v", tu)
	}
	if tu = s.ask(id, "add 2 3"); tu.text() != "The tool add says: 5" {
		t.Errorf("%+v", tu)
	}
	h := s.history(id)
	var roles []string
	for _, m := range h.Messages {
		roles = append(roles, m.Message.Role)
	}
	if strings.Join(roles, " ") != "user assistant user assistant tool assistant" || h.Revision != 4 {
		t.Errorf("%v at %d", roles, h.Revision)
	}
	if call := h.Messages[3].Message.ToolCalls; len(call) != 1 || call[0].ID != h.Messages[4].Message.ToolCallID || h.Messages[4].Message.Content != "5" {
		t.Errorf("%+v", h.Messages[3:5])
	}
	var after transcript
	if s.do("GET", "/chats/"+id+"?after=2", nil, &after); len(after.Messages) != 4 {
		t.Errorf("%d messages after revision 2", len(after.Messages))
	}
	s.chat("second")
	var chats []chat
	if s.do("GET", "/chats", nil, &chats); len(chats) != 2 || chats[0].Title != "second" || chats[1].Revision != 4 || chats[1].Messages != 6 {
		t.Errorf("%+v", chats)
	}
	for path, want := range map[string]int{"/chats/none": 404, "/chats/" + id + "?after=x": 400, "/chats/" + id + "/attachments/zz": 400} {
		if got := s.do("GET", path, nil, nil); got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Errorf("it did not stop in peace: %v", err)
	}
}

// Of posts at once to one chat one wins; the others get the head as it is now.
func TestOneOfManyWins(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "20ms")
	id := s.chat("busy")
	s.ask(id, "first")
	const n = 10
	type got struct {
		turn
		err error
	}
	all := make(chan got)
	for i := range n {
		go func() {
			tu, err := s.post(id, map[string]any{"text": fmt.Sprint("post ", i), "revision": 2}, "", nil)
			all <- got{tu, err}
		}()
	}
	won := 0
	for range n {
		g := <-all
		switch {
		case g.err != nil:
			t.Error(g.err)
		case g.status == 200:
			won++
			if g.claimed != 3 || g.done != 4 {
				t.Errorf("%+v", g.turn)
			}
		case g.status != 409 || g.head < 3:
			t.Errorf("%+v", g.turn)
		}
	}
	if h := s.history(id); won != 1 || len(h.Messages) != 4 || h.Revision != 4 {
		t.Errorf("%d won; %d messages at revision %d", won, len(h.Messages), h.Revision)
	}
	var metrics []byte
	if s.do("GET", "/metrics", nil, &metrics); !strings.Contains(string(metrics), "turnstone_commit_conflicts_total") ||
		!strings.Contains(string(metrics), `db_client_operation_duration_seconds_count{db_operation_name="commit"`) {
		t.Errorf("metrics:\n%s", metrics)
	}
}

// Two servers on one PostgreSQL: of posts to both at once one wins, what one
// answers the other shows, and what one leaves unanswered the other can answer.
func TestTwoServersOnOneDatabase(t *testing.T) {
	store := pgtest.URL(t) + "&schema=" + pgtest.Schema(t)
	dir := t.TempDir()
	both := []*server{start(t, "-data", dir, "-store", store, "-pace", "5ms"), start(t, "-data", dir, "-store", store, "-pace", "5ms")}
	id := both[0].chat("shared")
	for i := range 6 {
		if tu := both[i%2].ask(id, fmt.Sprint("turn ", i)); tu.done != uint64(2*i+2) {
			t.Fatalf("%+v", tu)
		}
	}
	results := make(chan turn)
	for i := range 10 {
		go func() {
			tu, err := both[i%2].post(id, map[string]any{"text": "contested", "revision": 12}, "", nil)
			if err != nil {
				t.Error(err)
			}
			results <- tu
		}()
	}
	won := 0
	for range 10 {
		if tu := <-results; tu.status == 200 && tu.done == 14 {
			won++
		} else if tu.status != 409 || tu.head < 13 {
			t.Errorf("%+v", tu)
		}
	}
	if a, b := both[0].history(id), both[1].history(id); won != 1 || len(a.Messages) != 14 || len(b.Messages) != 14 || a.Revision != 14 {
		t.Errorf("%d won; %d and %d messages", won, len(a.Messages), len(b.Messages))
	}
}

// A post that is sent again gets the same reply, and is no second question.
func TestAPostSentAgain(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "1ms")
	id := s.chat("again")
	for range 3 {
		tu, err := s.post(id, map[string]any{"text": "once"}, "key-1", nil)
		if err != nil || tu.status != 200 || tu.done != 2 || !strings.Contains(tu.text(), "question 1") {
			t.Errorf("%+v, %v", tu, err)
		}
	}
	if tu, err := s.post(id, map[string]any{"text": "something else"}, "key-1", nil); err != nil || tu.status != 409 {
		t.Errorf("%+v, %v", tu, err)
	}
	if h := s.history(id); len(h.Messages) != 2 {
		t.Errorf("%d messages", len(h.Messages))
	}
}

// The client's keys can't take the names of the service's own turns, and a
// revision that nobody can have seen is refused.
func TestKeysAndGuesses(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "1ms")
	for _, key := range []string{"answer 1", "answer to 1", "ask 1"} {
		id := s.chat(key)
		if tu, err := s.post(id, map[string]any{"text": "hi"}, key, nil); err != nil || tu.done != 2 {
			t.Errorf("%q: %+v, %v", key, tu, err)
		}
		if tu := s.ask(id, "more"); tu.done != 4 {
			t.Errorf("%q: %+v", key, tu)
		}
		if tu, err := s.post(id, map[string]any{"text": "x", "revision": 5}, "", nil); err != nil || tu.status != 409 || tu.head != 4 {
			t.Errorf("%q: %+v, %v", key, tu, err)
		}
	}
}

// Told to stop, it lets what is in flight end.
func TestStopsInPeace(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "50ms")
	id := s.chat("last words")
	first := make(chan bool, 1)
	result := make(chan error, 1)
	go func() {
		tu, err := s.post(id, map[string]any{"text": "one two three four"}, "", func(string) {
			select {
			case first <- true:
			default:
			}
		})
		if err == nil && tu.done != 2 {
			err = fmt.Errorf("%+v", tu)
		}
		result <- err
	}()
	<-first
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestAttachments(t *testing.T) {
	s := start(t, "-data", t.TempDir(), "-pace", "1ms")
	id, other := s.chat("with a file"), s.chat("without")
	var a attachment
	if status := s.do("POST", "/chats/"+id+"/attachments?name=notes.txt", []byte("the content"), &a); status != 201 || a.Size != 11 || a.Name != "notes.txt" || a.MediaType != "text/plain" {
		t.Fatalf("%d: %+v", status, a)
	}
	if tu, err := s.post(id, map[string]any{"text": "look", "attachments": []attachment{a}}, "", nil); err != nil || tu.status != 200 {
		t.Fatalf("%+v, %v", tu, err)
	}
	if got := s.history(id).Messages[0].Attachments; len(got) != 1 || got[0] != a {
		t.Errorf("%+v", got)
	}
	var content []byte
	if status := s.do("GET", "/chats/"+id+"/attachments/"+a.ID, nil, &content); status != 200 || string(content) != "the content" {
		t.Errorf("%d: %q", status, content)
	}
	if status := s.do("GET", "/chats/"+other+"/attachments/"+a.ID, nil, &content); status != 404 {
		t.Errorf("another chat reads it: %d", status)
	}
	a.ID = strings.Repeat("1", 64)
	if tu, err := s.post(id, map[string]any{"text": "look", "attachments": []attachment{a}}, "", nil); err != nil || tu.status != 409 {
		t.Errorf("%+v, %v", tu, err)
	}
}

// Killed in the middle of a reply, it answers when it is started again.
func TestKilledAndRestarted(t *testing.T) {
	dir := t.TempDir()
	s := start(t, "-data", dir, "-pace", "1ms")
	id := s.chat("survivor")
	s.ask(id, "before the crash")
	s.stop(syscall.SIGKILL)

	s = start(t, "-data", dir, "-pace", "200ms")
	words := 0
	tu, err := s.post(id, map[string]any{"text": "add 20 22"}, "key", func(string) {
		if words++; words == 2 {
			s.cmd.Process.Kill()
		}
	})
	if err == nil && tu.done != 0 {
		t.Fatalf("it was not killed in the middle: %+v", tu)
	}
	s.cmd.Wait()

	s = start(t, "-data", dir, "-pace", "1ms")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		h := s.history(id)
		if n := len(h.Messages); h.Revision == 4 {
			if n != 6 || h.Messages[5].Message.Content != "The tool add says: 42" {
				t.Errorf("%+v", h)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is not answered: %+v", h)
		}
	}
	// The client that lost its connection posts again, and gets the reply.
	if tu, err := s.post(id, map[string]any{"text": "add 20 22"}, "key", nil); err != nil || tu.done != 4 || tu.text() != "The tool add says: 42" {
		t.Errorf("%+v, %v", tu, err)
	}
	if tu := s.ask(id, "and on"); tu.done != 6 || !strings.Contains(tu.text(), "question 3") {
		t.Errorf("%+v", tu)
	}
}

// The comment at the top of main.go shows how to upload a file with curl. The request
// here is what that command sends: curl calls the body a form unless it is told
// otherwise, and the body must arrive all the same.
func TestTheUploadOfTheCommentArrivesWhole(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`curl --data-binary @(\S+) 'localhost:8080(/chats/CHAT/attachments\?name=(\S+))'`).FindStringSubmatch(string(source))
	if command == nil {
		t.Fatal("the comment shows no upload")
	}
	s := start(t, "-data", t.TempDir(), "-pace", "0")
	chat := s.chat("t")
	for _, content := range []string{"name=other&a=b\nnotes, 100% of them\n", ""} {
		target := s.url + strings.ReplaceAll(command[2], "CHAT", chat)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("User-Agent", "curl/8.5.0")
		req.Header.Set("Accept", "*/*")
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var a attachment
		err = json.NewDecoder(resp.Body).Decode(&a)
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated || err != nil {
			t.Fatalf("%d: %v", resp.StatusCode, err)
		}
		if a.Size != int64(len(content)) || a.Name != command[3] || !strings.HasPrefix(a.MediaType, "text/plain") {
			t.Errorf("%d bytes were sent, and stored is %+v", len(content), a)
		}
		if code := s.do("POST", "/chats/"+chat+"/messages", map[string]any{"text": "see notes", "attachments": []attachment{a}}, nil); code != http.StatusOK {
			t.Fatal(code)
		}
		resp, err = http.Get(s.url + "/chats/" + chat + "/attachments/" + a.ID)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != content {
			t.Errorf("read back %q, %v", got, err)
		}
	}
}
