package server_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/server"
)

func TestSV8_TooManyRequestsAreBusy(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	h := serve(t, server.Options{MaxRequests: 1, MaxWatches: 1, MaxUploads: 1, Patience: 500 * time.Millisecond}, func(h *host) {
		h.store.Validator = func(context.Context, string, *turnstone.Commit) error {
			close(began)
			<-goOn
			return nil
		}
	})
	h.post("create", `{"id":"s"}`)
	first := make(chan reply)
	go func() {
		a, err := h.do("POST", "/v1/commit", strings.NewReader(`{"session":"s"}`))
		if err != nil {
			t.Error(err)
		}
		first <- a
	}()
	<-began // Nothing keeps the commit from that.
	a := h.ask("POST", "/v1/list", "{}")
	if a.kind != "busy" || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	close(goOn)
	if a := <-first; a.status != 200 {
		t.Errorf("%+v", a)
	}
	h.post("list", "{}")

	watching, stop := context.WithCancel(ctx)
	defer stop()
	r, _ := http.NewRequestWithContext(watching, "GET", h.url+"/v1/watch?session=s", nil)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if a := h.ask("GET", "/v1/watch?session=s", ""); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=1&more=1", "x"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=2", "x"); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("DELETE", "/v1/upload?upload=1", ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=2", "x"); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// Who sends or takes nothing is cut off, so that nobody holds what others need.
func TestSV8_WhoSendsNothingIsCutOff(t *testing.T) {
	h := serve(t, server.Options{MaxRequests: 1, Patience: 100 * time.Millisecond}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/list HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(answer, "400") {
		t.Errorf("%q, %v", answer, err)
	}
	h.post("list", "{}")
}

// A short request can't make the server take much memory.
func TestSV8_ARequestOfTooManyObjectsIsRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	for name, body := range map[string]string{
		"commit-all": `{"commits":[{}` + strings.Repeat(",{}", 100_000) + `]}`, "commit": `{"session":"s","tombstone":[""` + strings.Repeat(`,""`, 2_000_000) + `]}`,
	} {
		h.refuses(name, body, "malformed", 400)
	}
	h.post("create", `{"id":"s"}`)
	h.refuses("commit", "{\"session\":\"s\",\"follow\":2,\"checkpoint\":[{\"name\":\"a\",\"content\":[0,2]},{\"name\":\"b\",\"content\":[0,1]}]}\nab", "malformed", 400)
}

// Who takes nothing of an answer is cut off, also where the answer is one document.
func TestSV8_WhoTakesNothingIsCutOff(t *testing.T) {
	h := serve(t, server.Options{MaxRequests: 1, Patience: 100 * time.Millisecond}, nil)
	h.post("create", `{"id":"s"}`)
	part := strings.Repeat("x", 30<<20)
	h.post("commit", fmt.Sprintf("{\"session\":\"s\",\"follow\":%d,\"checkpoint\":[{\"name\":\"a\",\"content\":[0,%[1]d]}]}\n", len(part))+part)
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"session":"s"}`
	fmt.Fprintf(c, "POST /v1/checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	time.Sleep(20 * time.Millisecond)
	testkit.Until(t, "the request ends", func() bool { return h.ask("POST", "/v1/list", "{}").status == 200 })
}

// Who is sending a piece of an upload that is gone gets the answer.
func TestSV8_WhoIsSendingGetsTheAnswer(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	const upload = "/v1/attachment?session=s&upload=0123456789abcdef0123456789abcdef"
	piece := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(piece)
	offset := 0
	put := func() reply {
		a := h.ask("PUT", fmt.Sprintf("%s&offset=%d&more=1", upload, offset), string(piece))
		offset += len(piece)
		return a
	}
	if a := put(); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	h.post("delete", `{"session":"s"}`)
	for range 40 { // The store finds out when it has enough to store.
		if a := put(); a.status == 410 {
			break
		}
	}
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	offset -= len(piece)
	fmt.Fprintf(c, "PUT %s&offset=%d&more=1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", upload, offset, 3<<20)
	for range 3 {
		if _, err := c.Write(piece[:1<<20]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(700 * time.Millisecond) // longer than net/http waits before it resets a connection
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(answer, "409") {
		t.Errorf("%q, %v", answer, err)
	}
}
