package tests

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/turnstonedb/turnstone/internal/keys"
	records "github.com/turnstonedb/turnstone/internal/session"
	"github.com/turnstonedb/turnstone/internal/testkit"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A bound is a limit, and a call that comes to n of what is limited.
type bound struct {
	maximum int64
	limit   string // what the LimitError names
	try     func(t *testing.T, n int) error
	// steps is set for what a session gathers: then try is called for each n from 1
	// on, with one store.
	steps func(t *testing.T) func(n int) error
}

// limited makes a session in a store whose clock stands still and whose random bytes
// are the same, so that every commit writes the same records.
func limited(t *testing.T) *turnstone.Session {
	now := time.Now()
	o := turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }, Random: constant(1)}
	return create(t, openStore(t, memory.New(), &o), turnstone.Request{ID: "s"})
}

// onCommit is the bound of a commit that has n of something.
func onCommit(maximum int64, limit string, in func(n int) turnstone.Commit) bound {
	return bound{maximum: maximum, limit: limit, try: func(t *testing.T, n int) error {
		_, err := limited(t).Commit(ctx, in(n))
		return err
	}}
}

// onMetadata is the bound of metadata that has n of something.
func onMetadata(maximum int64, limit string, m func(n int) head.Metadata) bound {
	return bound{maximum: maximum, limit: limit, try: func(t *testing.T, n int) error {
		s := limited(t)
		saved := s.SaveMetadata(ctx, m(n))
		_, _, created := openStore(t, memory.New(), nil).Create(ctx, turnstone.Request{ID: "s", Metadata: m(n)})
		if fmt.Sprint(saved) != fmt.Sprint(created) {
			t.Errorf("SaveMetadata says %v, Create %v", saved, created)
		}
		return saved
	}}
}

func text(n int) string { return strings.Repeat("x", n) }

func one(n turnstone.NewNode) turnstone.Commit {
	if n.Kind == "" {
		n.Kind = "k"
	}
	return turnstone.Commit{Nodes: []turnstone.NewNode{n}}
}

func numbered(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprint(i)] = "x"
	}
	return out
}

// manyAttachments uploads 1,700 attachments.
func manyAttachments(t *testing.T, s *turnstone.Session) (all []blob.Attachment) {
	for i := range 1700 {
		all = append(all, upload(t, s, fmt.Append(nil, i)))
	}
	return all
}

// manyWrites returns a commit of about n writes: two for each of 3,900 payloads, one for each of
// 1,000 grants of uploads, and one for each attachment, of which there are more than 1,000.
func manyWrites(attachments []blob.Attachment, n int) (c turnstone.Commit) {
	for i := range 3900 {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: bytes.Repeat(fmt.Appendf(nil, "%d ", i), 6000)})
	}
	for i, a := range attachments[:n-2*len(c.Nodes)-1000] {
		c.Nodes[i].Attachments = []blob.Attachment{a}
	}
	return c
}

var bounds = map[string]bound{
	"namespace": {maximum: turnstone.MaxNamespace, limit: "namespace bytes", try: func(t *testing.T, n int) error {
		st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Namespace: text(n)})
		if err == nil {
			st.Close()
		}
		return err
	}},
	"seal bytes": {maximum: turnstone.MaxSeal, limit: "seal bytes", try: func(t *testing.T, n int) error {
		st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{SealBytes: n})
		if err == nil {
			st.Close()
		}
		return err
	}},
	"session id": {maximum: turnstone.MaxSessionID, limit: "session id bytes", try: func(t *testing.T, n int) error {
		st := openStore(t, memory.New(), nil)
		_, _, err := st.Create(ctx, turnstone.Request{ID: text(n)})
		create(t, st, turnstone.Request{ID: "short"})
		if rerr := rename(ctx, st, "short", text(n-1)+"y"); fmt.Sprint(rerr) != fmt.Sprint(err) {
			t.Errorf("Rename says %v, Create %v", rerr, err)
		}
		return err
	}},
	"page": {maximum: turnstone.MaxPage, limit: "sessions of a page", try: func(t *testing.T, n int) error {
		_, err := openStore(t, memory.New(), nil).List(ctx, turnstone.ListOptions{Limit: n})
		return err
	}},
	"turn id":   onCommit(turnstone.MaxTurnID, "turn id bytes", func(n int) turnstone.Commit { return turnstone.Commit{Turn: text(n)} }),
	"kind":      onCommit(turnstone.MaxKind, "kind bytes", func(n int) turnstone.Commit { return one(turnstone.NewNode{Kind: text(n)}) }),
	"event key": onCommit(turnstone.MaxEventKey, "event key bytes", func(n int) turnstone.Commit { return one(turnstone.NewNode{Key: text(n)}) }),
	"payload": onCommit(turnstone.MaxPayload, "payload bytes", func(n int) turnstone.Commit {
		return one(turnstone.NewNode{Payload: make([]byte, n)})
	}),
	"nodes": onCommit(turnstone.MaxNodes, "nodes", func(n int) turnstone.Commit {
		c := turnstone.Commit{Nodes: make([]turnstone.NewNode, n)}
		for i := range c.Nodes {
			c.Nodes[i].Kind = "k"
		}
		return c
	}),
	"tombstones": {maximum: turnstone.MaxNodes, limit: "nodes", try: func(t *testing.T, n int) error {
		s := limited(t)
		r := commitAt(t, s, one(turnstone.NewNode{}))
		ids := make([]graph.ID, n)
		for i := range ids {
			ids[i] = r.Leaf
		}
		return s.Tombstone(ctx, ids...)
	}},
	"attachments": {maximum: turnstone.MaxAttachments, limit: "attachments", try: func(t *testing.T, n int) error {
		s := limited(t)
		a, err := s.PutAttachment(ctx, strings.NewReader("x"), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		var all []blob.Attachment
		for range n {
			all = append(all, a)
		}
		_, err = s.Commit(ctx, one(turnstone.NewNode{Attachments: all}))
		return err
	}},
	"record key": {maximum: turnstone.MaxRecordKey, limit: "key bytes", try: func(t *testing.T, n int) error {
		s := limited(t)
		_, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: text(n)})
		if _, rerr := s.Record(ctx, text(n)); err != nil && fmt.Sprint(rerr) != fmt.Sprint(err) || err == nil && rerr != nil {
			t.Errorf("ChangeRecords says %v, Record %v", err, rerr)
		}
		return err
	}},
	"prefix of records": {maximum: turnstone.MaxRecordKey, limit: "prefix bytes", try: func(t *testing.T, n int) error {
		_, err := limited(t).Records(ctx, turnstone.RecordQuery{Prefix: text(n)})
		return err
	}},
	"record": {maximum: turnstone.MaxRecord, limit: "value bytes", try: func(t *testing.T, n int) error {
		s := limited(t)
		_, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Value: random(n, 1)})
		if r, rerr := s.Record(ctx, "k"); err == nil && (rerr != nil || len(r.Value) != n) {
			t.Errorf("%d bytes, %v", len(r.Value), rerr)
		}
		return err
	}},
	"records": {maximum: turnstone.MaxRecords, limit: "records", try: func(t *testing.T, n int) error {
		s := limited(t)
		var changes []turnstone.RecordChange
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint(i))
			changes = append(changes, turnstone.RecordChange{Key: names[i]})
		}
		_, err := s.ChangeRecords(ctx, changes...)
		if _, lerr := s.Load(ctx, turnstone.Scope{Records: names}); (lerr == nil) != (err == nil) {
			t.Errorf("ChangeRecords says %v, Load %v", err, lerr)
		}
		return err
	}},
	"page of records": {maximum: turnstone.MaxPage, limit: "records of a page", try: func(t *testing.T, n int) error {
		_, st := onMemory(t, nil)
		_, err := st.Records(ctx, turnstone.RecordQuery{Limit: n})
		return err
	}},
	"keys": {maximum: turnstone.MaxNodes, limit: "keys", try: func(t *testing.T, n int) error {
		_, err := limited(t).NodesByKey(ctx, make([]string, n)...)
		return err
	}},
	"sessions of a commit": {maximum: turnstone.MaxSessions, limit: "sessions", try: func(t *testing.T, n int) error {
		_, st := onMemory(t, nil)
		var parts []turnstone.SessionCommit
		for i := range n {
			parts = append(parts, turnstone.SessionCommit{Session: create(t, st, turnstone.Request{ID: fmt.Sprint(i)})})
		}
		_, err := st.CommitAll(ctx, parts...)
		return err
	}},
	"media type":      attachmentText("media type bytes", func(a *blob.Attachment, s string) { a.MediaType = s }),
	"attachment name": attachmentText("attachment name bytes", func(a *blob.Attachment, s string) { a.Name = s }),
	"attachment bytes": {maximum: turnstone.MaxBlob, limit: "bytes", try: func(t *testing.T, n int) error {
		_, err := limited(t).PutAttachment(ctx, iotest.ErrReader(errRead), int64(n), "", "")
		if errors.Is(err, errRead) { // what is announced was accepted
			return nil
		}
		return err
	}},
	"parts":     onCommit(turnstone.MaxParts, "checkpoint parts", func(n int) turnstone.Commit { return turnstone.Commit{Checkpoint: parts(0, n)} }),
	"dropped":   onCommit(turnstone.MaxParts, "dropped parts", func(n int) turnstone.Commit { return turnstone.Commit{Drop: make([]string, n)} }),
	"part name": onCommit(turnstone.MaxPartName, "part name bytes", func(n int) turnstone.Commit { return turnstone.Commit{Checkpoint: map[string][]byte{text(n): nil}} }),
	"part": onCommit(turnstone.MaxPart, "bytes", func(n int) turnstone.Commit {
		return turnstone.Commit{Checkpoint: map[string][]byte{"p": make([]byte, n)}}
	}),
	"parts of a session": {maximum: turnstone.MaxParts, limit: "checkpoint parts", steps: func(t *testing.T) func(int) error {
		s := limited(t)
		return func(n int) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(n - 1), Checkpoint: parts(n, 1)})
			return err
		}
	}},
	"usage entries": onCommit(turnstone.MaxModels, "usage entries", func(n int) turnstone.Commit { return turnstone.Commit{Usage: make([]head.Usage, n)} }),
	"usage model": onCommit(turnstone.MaxModel, "model bytes", func(n int) turnstone.Commit {
		return turnstone.Commit{Usage: []head.Usage{{Model: text(n)}}}
	}),
	"models of a session": {maximum: turnstone.MaxSessionModels, limit: "models", steps: func(t *testing.T) func(int) error {
		s := limited(t)
		return func(n int) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(n - 1), Usage: []head.Usage{{Model: fmt.Sprint(n), Input: 1}}})
			return err
		}
	}},
	"input":        tokens(func(u *head.Usage, n uint64) { u.Input = n }),
	"output":       tokens(func(u *head.Usage, n uint64) { u.Output = n }),
	"cached input": tokens(func(u *head.Usage, n uint64) { u.CachedInput = n }),
	"cache write":  tokens(func(u *head.Usage, n uint64) { u.CacheWrite = n }),
	"reasoning":    tokens(func(u *head.Usage, n uint64) { u.Reasoning = n }),
	"cost": onCommit(turnstone.MaxCost, "cost", func(n int) turnstone.Commit {
		return turnstone.Commit{Usage: []head.Usage{{Cost: uint64(n)}}}
	}),
	"name":   onMetadata(turnstone.MaxText, "name bytes", func(n int) head.Metadata { return head.Metadata{Name: text(n)} }),
	"cwd":    onMetadata(turnstone.MaxText, "cwd bytes", func(n int) head.Metadata { return head.Metadata{Cwd: text(n)} }),
	"model":  onMetadata(turnstone.MaxModel, "model bytes", func(n int) head.Metadata { return head.Metadata{Model: text(n)} }),
	"labels": onMetadata(turnstone.MaxLabels, "labels", func(n int) head.Metadata { return head.Metadata{Labels: numbered(n)} }),
	"label name": onMetadata(turnstone.MaxLabel, "label name bytes", func(n int) head.Metadata {
		return head.Metadata{Labels: map[string]string{text(n): "x"}}
	}),
	"label value": onMetadata(turnstone.MaxLabel, "label value bytes", func(n int) head.Metadata {
		return head.Metadata{Labels: map[string]string{"x": text(n)}}
	}),
	"labels of a session": {maximum: turnstone.MaxLabels, limit: "labels", steps: func(t *testing.T) func(int) error {
		s := limited(t)
		return func(n int) error {
			return s.SaveMetadata(ctx, head.Metadata{Labels: map[string]string{fmt.Sprint(n): "x"}})
		}
	}},
	"labels of a commit": onCommit(turnstone.MaxLabels, "labels", func(n int) turnstone.Commit { return turnstone.Commit{Labels: numbered(n)} }),
	"label name of a commit": onCommit(turnstone.MaxLabel, "label name bytes", func(n int) turnstone.Commit {
		return turnstone.Commit{Labels: map[string]string{strings.Repeat("l", n): ""}}
	}),
	"label value of a commit": onCommit(turnstone.MaxCommitLabel, "label value bytes", func(n int) turnstone.Commit {
		return turnstone.Commit{Labels: map[string]string{"l": strings.Repeat("v", n)}}
	}),
	"name of a commit": onCommit(turnstone.MaxLabel, "name bytes", func(n int) turnstone.Commit {
		return turnstone.Commit{Keep: strings.Repeat("k", n)}
	}),
	"names of commits": {maximum: turnstone.MaxKept, limit: "kept revisions", steps: func(t *testing.T) func(int) error {
		s := limited(t)
		return func(n int) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Keep: fmt.Sprint(n)})
			return err
		}
	}},
	"tombstones of a commit": {maximum: turnstone.MaxNodes, limit: "tombstones", try: func(t *testing.T, n int) error {
		s := limited(t)
		var ids []graph.ID
		for len(ids) < n {
			ids = append(ids, commitTo(t, s, turnstone.Commit{Nodes: slices.Repeat(saying(nil), min(n-len(ids), turnstone.MaxNodes))}).Nodes...)
		}
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Tombstone: ids})
		return err
	}},
	"name of a kept revision": {maximum: turnstone.MaxLabel, limit: "name bytes", try: func(t *testing.T, n int) error {
		s := limited(t)
		commitAt(t, s, turnstone.Commit{})
		return s.Keep(ctx, text(n), 1)
	}},
	"kept revisions": {maximum: turnstone.MaxKept, limit: "kept revisions", steps: func(t *testing.T) func(int) error {
		s := limited(t)
		commitAt(t, s, turnstone.Commit{})
		return func(n int) error { return s.Keep(ctx, fmt.Sprint(n), 1) }
	}},
	"commit bytes": {maximum: turnstone.MaxCommitBytes, limit: "bytes", try: func(t *testing.T, n int) error {
		s := limited(t)
		commit := func(size, turn int) error {
			c := turnstone.Commit{Turn: text(turn)}
			for i := range 430 { // nothing of which compresses
				c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: random((size+i)/430, uint64(i))})
			}
			_, err := s.Commit(ctx, c)
			return err
		}
		size, turn := turnstone.MaxCommitBytes+2848, 250
		for _, margin := range []int{150, 0} { // what compresses a little makes the size inexact, the turn id does not
			var le *turnstone.LimitError
			if err := commit(size, turn); !errors.As(err, &le) {
				t.Fatal(err)
			}
			if over := int(le.Have) - turnstone.MaxCommitBytes; margin > 0 {
				size -= over - margin
			} else {
				turn += n - turnstone.MaxCommitBytes - over
			}
		}
		return commit(size, turn)
	}},
	"commit writes": {maximum: turnstone.MaxCommitWrites, limit: "writes", try: func(t *testing.T, n int) error {
		const beyond = 10_500
		s := limited(t)
		all := manyAttachments(t, s)
		_, err := s.Commit(ctx, manyWrites(all, beyond))
		var le *turnstone.LimitError
		if !errors.As(err, &le) || le.Limit != "writes" {
			t.Fatalf("%d writes and more: %v", beyond, err)
		}
		_, err = s.Commit(ctx, manyWrites(all, beyond-int(le.Have)+n))
		return err
	}},
	"node bytes": {maximum: turnstone.MaxCommitNodeBytes, limit: "node bytes", try: func(t *testing.T, n int) error {
		s := limited(t)
		a, err := s.PutAttachment(ctx, strings.NewReader("x"), -1, "", text(turnstone.MaxAttachmentText))
		if err != nil {
			t.Fatal(err)
		}
		c := turnstone.Commit{Nodes: make([]turnstone.NewNode, turnstone.MaxNodes)}
		n -= 64
		for i := range c.Nodes {
			c.Nodes[i], n = turnstone.NewNode{Kind: "k", Payload: make([]byte, 5000)}, n-160-1-5000
		}
		for i := range c.Nodes { // names of attachments are the rest, and a key
			for range turnstone.MaxAttachments {
				if n >= 64+len(a.Name) {
					c.Nodes[i].Attachments, n = append(c.Nodes[i].Attachments, a), n-64-len(a.Name)
				}
			}
		}
		c.Nodes[0].Key = text(n)
		_, err = s.Commit(ctx, c)
		return err
	}},
}

var errRead = errors.New("read")

func tokens(set func(*head.Usage, uint64)) bound {
	return onCommit(turnstone.MaxTokens, "tokens", func(n int) turnstone.Commit {
		var u head.Usage
		set(&u, uint64(n))
		return turnstone.Commit{Usage: []head.Usage{u}}
	})
}

func attachmentText(limit string, set func(*blob.Attachment, string)) bound {
	return bound{maximum: turnstone.MaxAttachmentText, limit: limit, try: func(t *testing.T, n int) error {
		s := limited(t)
		a, err := s.PutAttachment(ctx, strings.NewReader("x"), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		set(&a, text(n))
		_, perr := s.PutAttachment(ctx, strings.NewReader("x"), -1, a.MediaType, a.Name)
		_, err = s.Commit(ctx, one(turnstone.NewNode{Attachments: []blob.Attachment{a}}))
		if (perr == nil) != (err == nil) {
			t.Errorf("PutAttachment says %v, Commit %v", perr, err)
		}
		return err
	}}
}

func parts(first, n int) map[string][]byte {
	out := map[string][]byte{}
	for i := range n {
		out[fmt.Sprint(first+i)] = nil
	}
	return out
}

// One less than a limit and the limit are accepted; one more is a LimitError that
// names the limit and has its constant.
func TestC10_EveryLimitIsAConstant(t *testing.T) {
	testkit.OneGoroutine(t)
	for name, b := range bounds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && (b.maximum == turnstone.MaxPayload || b.maximum == turnstone.MaxCommitNodeBytes || b.maximum == turnstone.MaxCommitWrites) {
				t.Skip("large")
			}
			try, first := func(n int) error { return b.try(t, n) }, int(b.maximum)-1
			if b.steps != nil {
				try, first = b.steps(t), 1
			}
			for n := first; n <= int(b.maximum); n++ {
				if err := try(n); err != nil {
					t.Fatalf("%d of %d: %v", n, b.maximum, err)
				}
			}
			err := try(int(b.maximum) + 1)
			var le *turnstone.LimitError
			if !errors.As(err, &le) || !errors.Is(err, turnstone.ErrLimit) || le.Limit != b.limit || le.Max != b.maximum || le.Have != b.maximum+1 {
				t.Errorf("%d of %d: %v", b.maximum+1, b.maximum, err)
			}
		})
	}
	l := engine.MinLimits
	if turnstone.MaxCommitBytes > l.BatchBytes || turnstone.MaxCommitWrites > l.BatchOps {
		t.Errorf("an engine need not take a commit: %+v", l)
	}
}

// Every limit that the code can name has a constant of the package, and each of them
// is tried.
func TestC10_NoLimitWithoutAConstant(t *testing.T) {
	files, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	constants, limits := map[string]bool{}, 0
	isConstant := func(e ast.Expr) bool {
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 { // a conversion
			e = call.Args[0]
		}
		id, ok := e.(*ast.Ident)
		return ok && (constants[id.Name] || id.Name == "maximum") // the parameter of checker.limit and text
	}
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, filepath.Join("..", f.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
		for name, o := range file.Scope.Objects { //nolint:staticcheck // no types are needed
			if o.Kind == ast.Con && strings.HasPrefix(name, "Max") {
				constants[name] = true
			}
		}
	}
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if id, ok := n.Type.(*ast.Ident); !ok || id.Name != "LimitError" {
					return true
				}
				limits++
				found := false
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && fmt.Sprint(kv.Key) == "Max" {
						found = isConstant(kv.Value)
					}
				}
				if !found {
					t.Errorf("%v: the Max of a LimitError is no constant that begins with Max", set.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && fmt.Sprint(f.X) == "c" && (f.Sel.Name == "limit" || f.Sel.Name == "text") {
					limits++
					if !isConstant(n.Args[len(n.Args)-1]) {
						t.Errorf("%v: a limit that is no constant", set.Position(n.Pos()))
					}
				}
			}
			return true
		})
	}
	if limits < 30 || len(constants) < 25 {
		t.Errorf("only %d limits and %d constants were found", limits, len(constants))
	}
}

// The limits of requests are those of the records that hold them.
func TestLimitsOfRequestsAreThoseOfRecords(t *testing.T) {
	for name, l := range map[string][2]int{
		"nodes":       {turnstone.MaxNodes, graph.MaxNodes},
		"attachments": {turnstone.MaxAttachments, graph.MaxAttachments},
		"blob":        {turnstone.MaxBlob, blob.MaxBytes},
		"parts":       {turnstone.MaxParts, head.MaxParts},
		"models":      {turnstone.MaxSessionModels, head.MaxModels},
		"labels":      {turnstone.MaxLabels, head.MaxLabels},
		"record key":  {turnstone.MaxRecordKey, keys.MaxText},
		"record":      {turnstone.MaxRecord, records.MaxRecord},
	} {
		if l[0] != l[1] {
			t.Errorf("%s: %d of a request, %d of a record", name, l[0], l[1])
		}
	}
}

// A commit within all other limits that comes to more writes than an engine takes is refused.
func TestC10_ACommitOfTooManyWritesIsRefusedByName(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	_, err := s.Commit(ctx, manyWrites(manyAttachments(t, s), 10_500))
	var le *turnstone.LimitError
	if !errors.As(err, &le) || le.Limit != "writes" {
		t.Error(err)
	}
}

// Payloads of more than 5 KiB count up to 1 MiB of a commit's bytes, whether they are stored as blobs
// or with their nodes.
func TestC10_LargerPayloadsCountUpToOneMebibyte(t *testing.T) {
	s := limited(t)
	commitAt(t, s, turnstone.Commit{Nodes: saying(nil)}) // the prompts of a first commit are blobs
	c := turnstone.Commit{Expected: turnstone.AnyRevision}
	add := func(n, size int) {
		for range n {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: random(size, uint64(len(c.Nodes)))})
		}
	}
	add(140, 5000)
	add(12, 135<<10)
	add(4, 125<<10)
	commitAt(t, s, c)
}

// What a commit may write can be sealed, and erased in part.
func TestC10_TheLargestCommitCanBeSealedAndErased(t *testing.T) {
	testkit.Seldom(t)
	testkit.OneGoroutine(t)
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "a"})
	vacuum := func() {
		t.Helper()
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	full := func(payload, of int) turnstone.Commit {
		c := turnstone.Commit{Expected: turnstone.AnyRevision}
		for i := range turnstone.MaxNodes {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Key: fmt.Sprint(of, "/", i), Payload: random(payload, uint64(i))})
		}
		return c
	}
	for i := range 7 { // runs that the next one could take in
		commitTo(t, s, full(3, i))
		if i == 3 || i == 5 || i == 6 {
			vacuum()
		}
	}
	for size := 480; ; size-- {
		r, err := s.Commit(ctx, full(size, 9))
		if errors.Is(err, turnstone.ErrLimit) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		vacuum()
		if err := s.Tombstone(ctx, r.Nodes[7]); err != nil {
			t.Fatal(err)
		}
		vacuum()
		return
	}
}
