package persistencetest

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// full returns metadata in which every field is set; those of two numbers differ.
func full(n int) (m head.Metadata) {
	testkit.Fill(&m, n)
	return m
}

// metadataFields checks that every field of the metadata comes back wherever a session is described, is changed by
// SaveMetadata, and can be unset.
func metadataFields(s *suite) {
	s.create(turnstone.Request{ID: "a", Metadata: full(0)})
	_, err := s.Factory.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "b", Metadata: full(0)}})
	s.must(err)
	described := func(want head.Metadata) {
		for _, id := range []string{"a", "b"} {
			i, err := s.session(id).Info(ctx)
			s.must(err)
			s.equal("metadata of "+id, i.Metadata, want)
		}
		page, err := s.Factory.List(ctx, turnstone.ListOptions{})
		s.must(err)
		s.equal("sessions", len(page.Sessions), 2)
		for _, listed := range page.Sessions {
			i, err := s.session(listed.ID).Info(ctx)
			s.must(err)
			s.equal("listed is", listed, i)
		}
	}
	s.twice(func() { described(full(0)) })
	for _, id := range []string{"a", "b"} {
		s.must(s.session(id).SaveMetadata(ctx, full(1000)))
	}
	s.twice(func() { described(full(1000)) })
	want := reflect.ValueOf(full(1000))
	left := reflect.New(want.Type()).Elem()
	left.Set(want)
	for i := range left.NumField() {
		name, _, _ := strings.Cut(left.Type().Field(i).Tag.Get("json"), ",")
		for _, id := range []string{"a", "b"} {
			s.must(s.session(id).SaveMetadata(ctx, head.Metadata{}, head.Field(name)))
		}
		left.Field(i).SetZero()
		described(left.Interface().(head.Metadata))
	}
}

// custom checks what may be in Metadata.Custom, and what comes back.
func custom(s *suite) {
	long := `"` + strings.Repeat("x", turnstone.MaxCustom-2) + `"`
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for given, want := range map[string]string{
		`{"b": [1.50, 1e400, 12345678901234567890], "a" : null, "b2":"<&>"}`: `{"a":null,"b":[1.50,1e400,12345678901234567890],"b2":"<&>"}`,
		`"\ud800 \ufffd"`: "\"\ufffd \ufffd\"", "3": "3", "false": "false", long: long, nested(turnstone.MaxCustomLevels): nested(turnstone.MaxCustomLevels),
		"null": "", "": "",
	} {
		s.create(turnstone.Request{ID: given[:min(len(given), 20)] + "-", Metadata: head.Metadata{Custom: json.RawMessage(given)}})
		s.twice(func() {
			i, err := s.session(given[:min(len(given), 20)] + "-").Info(ctx)
			s.must(err)
			s.equal("custom", string(i.Custom), want)
		})
	}
	p := s.create(turnstone.Request{ID: "refused"})
	for given, kind := range map[string]error{
		"{": turnstone.ErrInvalid, "1 2": turnstone.ErrInvalid, "'x'": turnstone.ErrInvalid, "\"\xff\"": turnstone.ErrInvalid, " ": turnstone.ErrInvalid,
		long + " ": turnstone.ErrLimit, nested(turnstone.MaxCustomLevels + 1): turnstone.ErrLimit,
		`"` + strings.Repeat("\u2028", turnstone.MaxCustom/5) + `"`: turnstone.ErrLimit, // It is stored as an escape, which is longer.
	} {
		s.is(p.SaveMetadata(ctx, head.Metadata{Custom: json.RawMessage(given)}), kind)
	}
	for _, at := range []time.Time{time.Unix(-1, 0), time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)} {
		s.is(p.SaveMetadata(ctx, head.Metadata{HostCreated: at}), turnstone.ErrInvalid)
		s.is(p.SaveMetadata(ctx, head.Metadata{HostUpdated: at}), turnstone.ErrInvalid)
	}
	at := time.Date(2024, 2, 29, 23, 59, 59, 123456789, time.FixedZone("", 3600))
	s.must(p.SaveMetadata(ctx, head.Metadata{HostCreated: at, HostUpdated: time.Unix(0, 0)}))
	s.twice(func() {
		i, err := s.session("refused").Info(ctx)
		s.must(err)
		s.equal("custom", string(i.Custom), "")
		s.equal("times", []time.Time{i.HostCreated, i.HostUpdated}, []time.Time{at.UTC(), time.Unix(0, 0).UTC()})
	})
}

// messages checks that Info and lists know the length of the active path after every way to move the leaf.
func messages(s *suite) {
	p := s.create(turnstone.Request{ID: "p"})
	check := func(id string, want int) {
		s.Helper()
		s.twice(func() {
			s.Helper()
			i, err := s.session(id).Info(ctx)
			s.must(err)
			s.equal("messages of "+id, i.Messages, want)
			page, err := s.Factory.List(ctx, turnstone.ListOptions{})
			s.must(err)
			for _, listed := range page.Sessions {
				if listed.ID == id {
					s.equal("messages of "+id+" in the list", listed.Messages, want)
				}
			}
			st, err := s.session(id).Load(ctx, turnstone.Scope{})
			s.must(err)
			s.equal("nodes of "+id, len(st.Nodes), want)
		})
	}
	commit := func(id string, c turnstone.Commit, want int) []graph.ID {
		s.Helper()
		c.Expected = turnstone.AnyRevision
		r := s.commit(s.session(id), c)
		check(id, want)
		return r.Nodes
	}
	after := func(id graph.ID, of ...string) []turnstone.NewNode {
		nodes := texts(of...)
		nodes[0].Parent = turnstone.RefTo(id)
		return nodes
	}
	check("p", 0)
	s.equal("handle", p.ID(), "p")
	a := commit("p", turnstone.Commit{Nodes: texts("1", "2", "3")}, 3)
	b := commit("p", turnstone.Commit{Nodes: texts("4", "5")}, 5)
	commit("p", turnstone.Commit{}, 5)
	edit := commit("p", turnstone.Commit{Nodes: after(a[1], "3 again")}, 3) // an edited message
	commit("p", turnstone.Commit{Leaf: turnstone.RefTo(b[0])}, 4)           // a rewind into the middle of a turn
	commit("p", turnstone.Commit{Leaf: turnstone.RefNone()}, 0)
	c := commit("p", turnstone.Commit{Nodes: texts("another beginning")}, 1)
	// A turn with a side branch, whose leaf is elsewhere; and one that goes on from it.
	side := commit("p", turnstone.Commit{Nodes: append(after(b[1], "6", "7"), after(edit[0], "4 again")...), Leaf: turnstone.RefTo(c[0])}, 1)
	far := commit("p", turnstone.Commit{Nodes: after(side[1], "8"), Leaf: turnstone.RefNone()}, 0)
	commit("p", turnstone.Commit{Leaf: turnstone.RefTo(far[0])}, 8)
	commit("p", turnstone.Commit{Leaf: turnstone.RefTo(side[2])}, 4)
	commit("p", turnstone.Commit{Leaf: turnstone.RefTo(far[0])}, 8)
	// Forks at the leaf, before it, on another branch, at a revision, of forks, and detached.
	fork := func(id string, want int, r turnstone.Request) {
		s.Helper()
		r.ID = id
		s.create(r)
		check(id, want)
		commit(id, turnstone.Commit{Nodes: texts("own")}, want+1)
	}
	fork("f", 8, turnstone.Request{Parent: "p"})
	fork("g", 2, turnstone.Request{Parent: "p", ForkNode: a[1]})
	fork("h", 4, turnstone.Request{Parent: "p", ForkNode: side[2]})
	fork("i", 5, turnstone.Request{Parent: "p", ForkAt: 2})
	fork("j", 9, turnstone.Request{Parent: "f"})
	fork("k", 7, turnstone.Request{Parent: "j", ForkNode: side[1]})
	fork("l", 0, turnstone.Request{Parent: "p", ForkAt: turnstone.RevisionZero})
	fork("m", 0, turnstone.Request{Parent: "p", Detached: true})
	commit("k", turnstone.Commit{Leaf: turnstone.RefTo(side[0])}, 6)
	commit("k", turnstone.Commit{Leaf: turnstone.RefTo(a[0])}, 1)
	commit("j", turnstone.Commit{Leaf: turnstone.RefTo(a[2])}, 3)
	_, err := s.Factory.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "n", Parent: "p", ForkNode: b[0]}, Commit: turnstone.Commit{Nodes: texts("own")}})
	s.must(err)
	check("n", 5)
}

// infoFields checks that every field of Info says something of one of two sessions.
func infoFields(s *suite) {
	p := s.create(turnstone.Request{ID: "p"})
	s.grow(p, 0, "1")
	f := s.create(turnstone.Request{ID: "f", Parent: "p", Detached: true, Summary: true, Metadata: full(0)})
	s.commit(f, turnstone.Commit{Nodes: texts("2"), Usage: []head.Usage{{Model: "m", Input: 1}}})
	i, err := f.Info(ctx)
	s.must(err)
	v := reflect.ValueOf(i)
	for k := range v.NumField() {
		if v.Field(k).IsZero() {
			s.Fatalf("Info.%s is zero", v.Type().Field(k).Name)
		}
	}
}
