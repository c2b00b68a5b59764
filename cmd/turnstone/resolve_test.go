package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
)

func TestShortenedIDs(t *testing.T) {
	var ids []string
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"alpha", "alphabet", "beta", "with@1", "with:beef"} {
			s := create(t, st, turnstone.Request{ID: id})
			r := commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Key: "k", Payload: []byte("in " + id)}}})
			ids = append(ids, r.Leaf.String())
		}
	})
	run := func(args ...string) (int, string) {
		code, out, errs := status(t, nil, append(args, "--store", url)...)
		return code, out + errs
	}
	for name, want := range map[string]string{
		"alpha": "in alpha\n", "alphab": "in alphabet", "b": "in beta", "with@1": "in with@1", "with:beef": "in with:beef", "with@1@1": "in with@1",
		"beta:" + ids[2][:6]: "in beta", "beta:k": "in beta", "bet@1": "in beta",
	} {
		if code, out := run("show", name); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d: %s", name, code, out)
		}
	}
	if code, out := run("show", "alph"); code != exitNotFound || !strings.Contains(out, `several begin with "alph"`) {
		t.Errorf("%d: %s", code, out)
	}
	for _, args := range [][]string{{"rm", "bet"}, {"erase", "bet", "--yes"}, {"tombstone", "bet", "k"}, {"rename", "bet", "x"}} {
		if code, out := run(args...); code != exitNotFound {
			t.Errorf("%v: %d: %s", args, code, out)
		}
	}
	if code, out := run("tombstone", "beta", "k"); code != 0 {
		t.Error(out)
	}
	if _, out := run("show", "beta"); strings.Contains(out, "in beta") {
		t.Error(out)
	}
}

// cat finds content by its id in any session.
func TestCatByID(t *testing.T) {
	var attachment, part string
	url := build(t, func(st *turnstone.Store) {
		for i := range 3 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
			a, err := s.PutAttachment(t.Context(), strings.NewReader(fmt.Sprint("attachment ", i)), -1, "", "")
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, turnstone.Commit{
				Nodes: []turnstone.NewNode{{Kind: "user", Attachments: []blob.Attachment{a}}}, Checkpoint: map[string][]byte{"p": fmt.Append(nil, "part ", i)},
			})
			if attachment = a.ID.String(); i == 1 {
				state, err := s.Load(t.Context(), turnstone.Scope{})
				if err != nil {
					t.Fatal(err)
				}
				part = state.Parts[0].Blob.String()
			}
		}
	})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{attachment}, "attachment 2"},
		{[]string{part}, "part 1"},
		{[]string{"s1", part[:8]}, "part 1"},
		{[]string{"s2", attachment[:8]}, "attachment 2"},
	} {
		if out := must(t, append(append([]string{"cat"}, c.args...), "--store", url)...); out != c.want {
			t.Errorf("%v: %q", c.args, out)
		}
	}
	file := t.TempDir() + "/out"
	must(t, "cat", part, "-o", file, "--store", url)
	if data, err := os.ReadFile(file); err != nil || string(data) != "part 1" {
		t.Errorf("%q, %v", data, err)
	}
}

// A whole name is never taken for the beginning of another one.
func TestNamesBeforeBeginnings(t *testing.T) {
	keys := map[string]string{}
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"trip", "trip@1x", "trip:k1", "agent", "agent:msg_12"} {
			s := create(t, st, turnstone.Request{ID: id})
			commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Key: "msg_1", Payload: []byte("msg_1 of " + id)}, {Kind: "user", Key: "k", Payload: []byte("k of " + id)}}})
		}
		// The keys look like beginnings of ids.
		s := create(t, st, turnstone.Request{ID: "keys"})
		c := turnstone.Commit{}
		for i := range 2000 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "user", Key: fmt.Sprint(1000 + i), Payload: fmt.Append(nil, "node ", 1000+i)})
		}
		r := commit(t, s, c)
		for i, id := range r.Nodes { // a key that another node's id begins with, and an ambiguous beginning
			if begin := id.String()[:4]; strings.Trim(begin, "0123456789") == "" && begin >= "1000" && begin < "3000" && begin != fmt.Sprint(1000+i) {
				keys[begin] = "node " + begin
			}
		}
	})
	if len(keys) == 0 {
		t.Fatal("no node's id begins with the key of another one")
	}
	for name, want := range map[string]string{"trip@1": "k of trip\n", "agent:msg_1": "msg_1 of agent\n", "trip:k": "k of trip\n", "trip@1x": "k of trip@1x", "trip@1x@1": "k of trip@1x"} {
		if out := must(t, "show", name, "--last", "1", "--store", url); !strings.Contains(out, want) {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	for key, want := range keys {
		if out := must(t, "cat", "keys", key, "--store", url); out != want {
			t.Errorf("%s: %q", key, out)
		}
		if testing.Short() {
			break
		}
	}
}

// export writes attachments under their ids, whatever names their host gave them, and lists them.
func TestExportTakesAttachmentsAlong(t *testing.T) {
	var a blob.Attachment
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		var err error
		if a, err = s.PutAttachment(t.Context(), strings.NewReader("content"), -1, "image/png", "../../evil"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			commit(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("see"), Attachments: []blob.Attachment{a}}}})
		}
	})
	dir := filepath.Join(t.TempDir(), "files")
	if out := must(t, "export", "s", "--attachments", dir, "--store", url); out != "see\nsee\n" {
		t.Errorf("%q", out)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, a.ID.String())); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	index, err := os.ReadFile(filepath.Join(dir, "attachments.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var revisions []head.Revision
	for line := range strings.Lines(string(index)) {
		var of turnstone.Attached
		if err := json.Unmarshal([]byte(line), &of); err != nil || of.Attachment != a || of.Node.IsZero() {
			t.Errorf("%s: %v", line, err)
		}
		revisions = append(revisions, of.Revision)
	}
	if !slices.Equal(revisions, []head.Revision{1, 2}) {
		t.Error(revisions)
	}
}
