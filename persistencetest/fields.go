package persistencetest

import (
	"reflect"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// full returns metadata in which every field is set; those of two numbers differ.
func full(n int) (m turnstone.Metadata) {
	testkit.Fill(&m, n)
	return m
}

// metadataFields checks that every field of the metadata comes back wherever a session is described, is changed by
// SaveMetadata, and can be unset.
func metadataFields(s *suite) {
	s.create(turnstone.Request{ID: "a", Metadata: full(0)})
	_, err := s.Factory.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "b", Metadata: full(0)}})
	s.must(err)
	described := func(want turnstone.Metadata) {
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
			s.must(s.session(id).SaveMetadata(ctx, turnstone.Metadata{}, turnstone.Field(name)))
		}
		left.Field(i).SetZero()
		described(left.Interface().(turnstone.Metadata))
	}
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
