package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
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
	for a = h.ask("GET", "/v1/upload?upload=4", ""); a.status == 200; a = h.ask("GET", "/v1/upload?upload=4", "") {
		time.Sleep(10 * time.Millisecond)
	}
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
	for h.ask("GET", "/v1/upload?upload=1", "").body != `{"offset":4}`+"\n" {
		time.Sleep(time.Millisecond)
	}
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
