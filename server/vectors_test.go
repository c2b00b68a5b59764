package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone/server"
)

var updateVectors = flag.Bool("vectors", false, "write vectors.jsonl")

// A vector is a request, and what a new server answers after those before it.
type vector struct {
	About  string            `json:"about"`
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Header map[string]string `json:"header,omitempty"`
	vectorBody
	Answer struct {
		Status int               `json:"status"`
		Header map[string]string `json:"header"`
		vectorBody
	} `json:"answer"`
}

// A vectorBody is text, or bytes in base64.
type vectorBody struct {
	Body   string `json:"body,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

func bodyOf(b []byte) vectorBody {
	if utf8.Valid(b) {
		return vectorBody{Body: string(b)}
	}
	return vectorBody{Base64: b}
}

// asks are the requests of the vectors.
var asks = []struct{ about, method, path, body string }{
	{"a session is made", "POST", "/v1/create", `{"id":"s","group":"g","name":"A chat","labels":{"a":"1"}}`},
	{"it is there already", "POST", "/v1/create", `{"id":"s"}`},
	{"payloads as text, a label, usage", "POST", "/v1/commit", `{"session":"s","turn":"t1","expected":0,"nodes":[{"kind":"user","key":"k1","payload":"hello"},{"kind":"assistant","payload":"hi \u00e9"}],"labels":{"l":"v"},"usage":[{"model":"m","input":3,"output":4}]}`},
	{"bytes behind the line: a payload that is no text, and a part of a checkpoint", "POST", "/v1/commit", "{\"session\":\"s\",\"expected\":1,\"nodes\":[{\"kind\":\"image\",\"payload\":[0,4]}],\"checkpoint\":[{\"name\":\"p\",\"content\":[4,3]}],\"follow\":7}\n\xff\xd8\xff\xe0abc"},
	{"the same turn again", "POST", "/v1/commit", `{"session":"s","turn":"t1","expected":0,"nodes":[{"kind":"user","key":"k1","payload":"hello"},{"kind":"assistant","payload":"hi \u00e9"}],"labels":{"l":"v"},"usage":[{"model":"m","input":3,"output":4}]}`},
	{"a conflict", "POST", "/v1/commit", `{"session":"s","expected":1}`},
	{"another commit of a turn", "POST", "/v1/commit", `{"session":"s","turn":"t1","expected":0}`},
	{"the whole session", "POST", "/v1/load", `{"session":"s"}`},
	{"its last node, a part and a record that is not there", "POST", "/v1/load", `{"session":"s","last":1,"parts":["p"],"records":["r"]}`},
	{"nodes one at a time, from an earlier revision", "POST", "/v1/nodes", `{"session":"s","at":1}`},
	{"a node by its key", "POST", "/v1/node", `{"session":"s","key":"k1"}`},
	{"the checkpoint", "POST", "/v1/checkpoint", `{"session":"s"}`},
	{"the log", "POST", "/v1/log", `{"session":"s"}`},
	{"records are set", "POST", "/v1/change-records", `{"session":"s","changes":[{"key":"r","value":"v","action":"set","expect":"none"},{"key":"ref","value":"{\"revision\":2,\"beside\":\"r\"}","action":"set"}]}`},
	{"and not again", "POST", "/v1/change-records", `{"session":"s","changes":[{"key":"r","value":"w","action":"set","expect":"none"}]}`},
	{"a list of records", "POST", "/v1/records", `{"session":"s"}`},
	{"a ref, with the checkpoint that it leads to and the records beside it", "POST", "/v1/refs", `{"session":"s","refs":[{"key":"ref"},{"key":"gone"}]}`},
	{"an attachment", "PUT", "/v1/attachment?session=s&upload=u1&size=5&mediaType=text/plain&name=a.txt", "hello"},
	{"sessions of a group", "POST", "/v1/list", `{"group":"g"}`},
	{"a fork", "POST", "/v1/create", `{"id":"f","parent":"s"}`},
	{"a session that is not there", "POST", "/v1/info", `{"session":"none"}`},
	{"a field that is not there", "POST", "/v1/info", `{"session":"s","Session":"s"}`},
	{"no document", "POST", "/v1/info", `{"session":`},
	{"another method", "GET", "/v1/info", ``},
	{"a collection", "POST", "/v1/gc", `{}`},
	{"a deletion", "POST", "/v1/delete", `{"session":"f"}`},
}

// TestSV17_TheVectorsAreWhatAServerAnswers compares the file of vectors with what a server answers. A client in another
// language proves itself by it. `go test ./server -run Vectors -vectors` writes it.
func TestSV17_TheVectorsAreWhatAServerAnswers(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := serve(t, server.Options{}, func(h *host) {
		h.store.Random = rand.NewChaCha8([32]byte{1})
		h.store.Now = func() time.Time { now = now.Add(time.Second); return now }
	})
	var out bytes.Buffer
	var versions []string // of records, which are random: each stands as one more than the one before
	for _, a := range asks {
		v := vector{About: a.about, Method: a.method, Path: a.path, vectorBody: bodyOf([]byte(a.body))}
		got := h.ask(a.method, a.path, a.body)
		if a.path == "/v1/change-records" {
			var answer struct{ Versions []string }
			if err := json.Unmarshal([]byte(got.body), &answer); err == nil {
				versions = append(versions, answer.Versions...)
			}
		}
		for i, version := range versions {
			got.body = strings.ReplaceAll(got.body, version, fmt.Sprintf("%032x", i+1))
		}
		v.Answer.Status, v.Answer.vectorBody = got.status, bodyOf([]byte(got.body))
		v.Answer.Header = map[string]string{}
		for _, name := range []string{"Content-Type", "Allow"} {
			if value := got.header.Get(name); value != "" {
				v.Answer.Header[name] = value
			}
		}
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	if *updateVectors {
		if err := os.WriteFile("vectors.jsonl", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	is, wants := strings.Split(out.String(), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(is), len(wants)) {
		if is[i] != wants[i] {
			t.Errorf("vector %d is\n%s\nand the file has\n%s", i, is[i], wants[i])
		}
	}
	if len(is) != len(wants) {
		t.Errorf("%d vectors, and the file has %d", len(is), len(wants))
	}
}
