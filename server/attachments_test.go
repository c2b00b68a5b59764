package server_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/server"
)

func TestSV7_AnUploadGoesOnWhereItIs(t *testing.T) {
	h := serve(t, server.Options{UploadTimeout: 300 * time.Millisecond}, nil)
	h.post("create", `{"id":"s"}`)
	put := func(query, body string) reply {
		t.Helper()
		return h.ask("PUT", "/v1/attachment?session=s&mediaType=text/plain&"+query, body)
	}
	if a := put("upload=1&more=1", "one "); a.status != 200 || !strings.Contains(a.body, `"offset":4`) {
		t.Errorf("%+v", a)
	}
	if a := put("upload=1&offset=3", "x"); a.kind != "upload-offset" || !strings.Contains(a.body, `"offset":4`) {
		t.Errorf("%+v", a)
	}
	if a := put("upload=1&offset=4&name=other", "x"); a.kind != "request" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/v1/upload?upload=1", ""); a.body != `{"offset":4}`+"\n" {
		t.Errorf("%+v", a)
	}
	a := put("upload=1&offset=4", "two")
	if a.status != 200 || !strings.Contains(a.body, `"size":7`) {
		t.Errorf("%+v", a)
	}
	if again := h.ask("GET", "/v1/upload?upload=1", ""); again.body != a.body {
		t.Errorf("%+v", again)
	}
	var p struct{ Attachment struct{ ID string } }
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	if a := h.ask("GET", "/v1/attachment?session=s&offset=4&id="+p.Attachment.ID, ""); a.body != "two" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/v1/attachment?session=s&offset=8&id="+p.Attachment.ID, ""); a.kind != "request" {
		t.Errorf("%+v", a)
	}
	if a := put("upload=2&offset=4", "two"); a.kind != "upload-not-found" {
		t.Errorf("%+v", a)
	}
	if a := put("upload=3&size=2", "abc"); a.kind != "size" || a.status != 422 {
		t.Errorf("%+v", a)
	}
	if a := put("upload=4&more=1", "a"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	testkit.Until(t, "the upload is given up", func() bool {
		a = h.ask("GET", "/v1/upload?upload=4", "")
		return a.status != 200
	})
	if a.kind != "upload-not-found" {
		t.Errorf("%+v", a)
	}
}

// What is damaged is not ended as if it were whole.
func TestSV7_ADamagedAttachmentIsCutOff(t *testing.T) {
	var faults *enginetest.Faulty
	h := serve(t, server.Options{}, func(h *host) {
		faults = &enginetest.Faulty{Engine: h.engine}
		h.engine = faults
	})
	h.post("create", `{"id":"s"}`)
	content := make([]byte, 8<<20)
	for i := range content {
		content[i] = byte(i * i >> 7 * i >> 11)
	}
	a, err := h.do("PUT", "/v1/attachment?session=s&upload=1", bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Attachment struct{ ID string } }
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	path := "/v1/attachment?session=s&id=" + p.Attachment.ID
	if a, err := h.do("GET", path, nil); err != nil || a.body != string(content) {
		t.Fatal(len(a.body), err)
	}
	n := 0
	faults.Plan = func(c enginetest.Call) (f enginetest.Fault) {
		if c.Op == "Get" {
			if n++; n > 4 {
				f.Err = engine.ErrUnavailable
			}
		}
		return f
	}
	if a, err := h.do("GET", path, nil); err == nil && a.status == 200 {
		t.Errorf("%d bytes end as if they were all", len(a.body))
	}
}

// A request that goes on with an upload gets its turn, whatever the one before waits for.
func TestSV7_ARequestTakesAnUploadOver(t *testing.T) {
	h := serve(t, server.Options{Patience: 20 * time.Second}, nil)
	h.post("create", `{"id":"s"}`)
	in, out := io.Pipe()
	defer out.Close()
	cut := make(chan error, 1)
	go func() {
		a, err := h.do("PUT", "/v1/attachment?session=s&upload=1", in)
		if err == nil && a.status == 200 {
			err = errors.New("the request that was cut off has ended the upload")
		} else {
			err = nil
		}
		cut <- err
	}()
	fmt.Fprint(out, "one ")
	testkit.Until(t, "four bytes have come", func() bool { return h.ask("GET", "/v1/upload?upload=1", "").body == `{"offset":4}`+"\n" })
	begun := time.Now()
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=1&offset=4", "two"); a.status != 200 || !strings.Contains(a.body, `"size":7`) {
		t.Errorf("%+v", a)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := <-cut; err != nil {
		t.Error(err)
	}
}

// An attachment can be kept by whoever has read it, and read in parts.
func TestSV7_AnAttachmentHasATagAndRanges(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	content := strings.Repeat("0123456789", 20_000)
	stored := h.ask("PUT", "/v1/attachment?session=s&upload=1", content)
	var up struct{ Attachment struct{ ID string } }
	if err := json.Unmarshal([]byte(stored.body), &up); err != nil {
		t.Fatal(err)
	}
	path := "/v1/attachment?session=s&id=" + up.Attachment.ID
	tag := `"` + up.Attachment.ID + `"`
	whole := h.ask("GET", path, "")
	if whole.status != 200 || whole.body != content || whole.header.Get("ETag") != tag || !strings.Contains(whole.header.Get("Cache-Control"), "immutable") || whole.header.Get("Content-Length") != "200000" {
		t.Errorf("%d, %d bytes, %v", whole.status, len(whole.body), whole.header)
	}
	if head := h.ask("HEAD", path, ""); head.status != 200 || head.body != "" || head.header.Get("Content-Length") != "200000" {
		t.Errorf("%+v", head)
	}
	for header, want := range map[string]int{tag: 304, `"x", ` + tag: 304, "W/" + tag: 304, "*": 304, `"x"`: 200} {
		if a := h.ask("GET", path, "", "If-None-Match", header); a.status != want || want == 304 && a.body != "" {
			t.Errorf("If-None-Match %s: %d", header, a.status)
		}
	}
	for header, want := range map[string]string{
		"bytes=0-0": "0", "bytes=5-14": "5678901234", "bytes=199995-": "56789", "bytes=199995-300000": "56789", "bytes=-3": "789", "bytes=-300000": content,
		"bytes=0-199999": content, "bytes=0-1,3-4": content, "items=0-1": content, "bytes=5-4": content, "bytes=": content, "bytes=-": content, "bytes=99999999999999999999-": content,
	} {
		a := h.ask("GET", path, "", "Range", header)
		if status := map[bool]int{true: 200, false: 206}[want == content]; a.status != status || a.body != want {
			t.Errorf("%s: %d, %d bytes, %s", header, a.status, len(a.body), a.header.Get("Content-Range"))
		}
	}
	if a := h.ask("GET", path, "", "Range", "bytes=5-14"); a.header.Get("Content-Range") != "bytes 5-14/200000" {
		t.Errorf("%+v", a.header)
	}
	for _, header := range []string{"bytes=200000-", "bytes=-0"} {
		if a := h.ask("GET", path, "", "Range", header); a.kind != "range" || a.header.Get("Content-Range") != "bytes */200000" {
			t.Errorf("%s: %+v", header, a)
		}
	}
	if a := h.ask("GET", path, "", "Range", "bytes=0-0", "If-Range", `"x"`); a.body != content {
		t.Errorf("another one: %d bytes", len(a.body))
	}
	if a := h.ask("GET", path+"&offset=199999", ""); a.status != 200 || a.body != "9" {
		t.Errorf("%+v", a)
	}
}

// A route that is asked in a wrong way says what is right.
func TestSV5_MethodsAndMediaTypesAreChecked(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	for route, allow := range map[string]string{"GET /v1/list": "POST", "POST /v1/watch": "GET", "POST /v1/attachment": "GET, PUT", "PATCH /v1/upload": "GET, DELETE", "POST /healthz": "GET", "DELETE /v1/": "GET"} {
		method, path, _ := strings.Cut(route, " ")
		if a := h.ask(method, path, ""); a.status != 405 || a.kind != "method" || a.header.Get("Allow") != allow {
			t.Errorf("%s: %d %s, Allow %s", route, a.status, a.kind, a.header.Get("Allow"))
		}
	}
	if a := h.ask("GET", "/v1/none", ""); a.status != 404 {
		t.Errorf("%+v", a)
	}
	for _, c := range []struct {
		header, value string
		status        int
	}{
		{"Content-Type", "application/json; charset=utf-8", 200},
		{"Content-Type", "application/x-www-form-urlencoded", 200},
		{"Content-Type", "text/plain;charset=UTF-8", 200},
		{"Content-Type", "application/vnd.turnstone", 200},
		{"Content-Type", "multipart/form-data; boundary=x", 415},
		{"Content-Type", "application/xml", 415},
		{"Content-Type", "no type;", 415},
		{"Content-Encoding", "gzip", 415},
		{"Content-Encoding", "identity", 200},
		{"Accept", "*/*", 200},
		{"Accept", "text/html, application/json;q=0.5", 200},
		{"Accept", "text/html", 406},
		{"Accept", "application/json;q=0, image/png", 406},
	} {
		if a := h.ask("POST", "/v1/list", "{}", c.header, c.value); a.status != c.status {
			t.Errorf("%s: %s: %d %s", c.header, c.value, a.status, a.kind)
		}
	}
}

// A content whose pieces are whole and which is another one all the same is cut off before its end.
func TestSV7_AnAttachmentOfAnotherContentIsCutOff(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	var ids [2][]byte
	for i := range ids {
		content := make([]byte, 3<<20)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(content)
		var up struct{ Attachment struct{ ID string } }
		stored := h.ask("PUT", fmt.Sprint("/v1/attachment?session=s&upload=", i), string(content))
		if err := json.Unmarshal([]byte(stored.body), &up); err != nil {
			t.Fatal(err)
		}
		ids[i], _ = hex.DecodeString(up.Attachment.ID)
	}
	var ks, bodies [2][]byte // of the lists of pieces
	for p, err := range h.engine.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		body, err := codec.Decode(p.Key, p.Value, keys.Blob)
		for i, id := range ids {
			if err == nil && bytes.Contains(body, id) {
				ks[i], bodies[i] = bytes.Clone(p.Key), bytes.Clone(body)
			}
		}
	}
	if bodies[0] == nil || bodies[1] == nil {
		t.Fatal("there are no lists")
	}
	var b engine.Batch
	b.Set(ks[0], codec.Encode(ks[0], keys.Blob, bytes.Replace(bodies[1], ids[1], ids[0], 1)))
	if err := h.engine.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	a, err := h.do("GET", fmt.Sprintf("/v1/attachment?session=s&id=%x", ids[0]), nil)
	if err == nil && a.status == 200 {
		t.Errorf("%d bytes of another content came as if they were whole", len(a.body))
	}
}
