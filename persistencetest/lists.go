package persistencetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// sorted lists the sessions that o selects, by id.
func (s *suite) sorted(o turnstone.ListOptions) []string {
	s.Helper()
	ids := s.pages(o)
	slices.Sort(ids)
	return ids
}

// groups checks which sessions are listed by a group, and which groups are refused.
func groups(s *suite) {
	all := []string{"", "a", "a/b", "a/b/c", "a/bc", "ab", "b/a", "a/b", "1/2/3/4/5/6/7/8", strings.Repeat("x", turnstone.MaxGroup)}
	for i, group := range all {
		s.create(turnstone.Request{ID: fmt.Sprint(i), Metadata: head.Metadata{Group: group, Labels: map[string]string{"odd": fmt.Sprint(i % 2)}}})
	}
	for id, group := range map[string]string{"x": "a/b", "y": "a/bc", "z": ""} {
		s.create(turnstone.Request{ID: id, Metadata: head.Metadata{Group: group}, Parent: "0", Detached: true})
	}
	s.twice(func() {
		s.equal("by parent and group", s.sorted(turnstone.ListOptions{Parent: "0", Group: "a/b"}), []string{"x"})
		s.equal("by parent and the group above", s.sorted(turnstone.ListOptions{Parent: "0", Group: "a", Limit: 1}), []string{"x", "y"})
		for group, want := range map[string][]string{
			"a": {"1", "2", "3", "4", "7", "x", "y"}, "a/b": {"2", "3", "7", "x"}, "a/b/c": {"3"}, "a/bc": {"4", "y"}, "ab": {"5"}, "b": {"6"}, "b/a": {"6"},
			"1/2": {"8"}, all[8]: {"8"}, all[9]: {"9"}, "c": nil, "a/b/c/d": nil, "A": nil,
		} {
			s.equal("group "+group, s.sorted(turnstone.ListOptions{Group: group, Limit: 2}), want)
		}
		s.equal("by group and label", s.sorted(turnstone.ListOptions{Group: "a", Labels: map[string]string{"odd": "1"}}), []string{"1", "3", "7"})
		i, err := s.session("3").Info(ctx)
		s.must(err)
		s.equal("group", i.Group, "a/b/c")
	})
	p := s.session("1")
	for _, bad := range []string{"/", "/a", "a/", "a//b", "\xff"} {
		_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "bad", Metadata: head.Metadata{Group: bad}})
		s.is(err, turnstone.ErrInvalid)
		s.is(p.SaveMetadata(ctx, head.Metadata{Group: bad}), turnstone.ErrInvalid)
		_, err = s.Factory.List(ctx, turnstone.ListOptions{Group: bad})
		s.is(err, turnstone.ErrInvalid)
	}
	for _, large := range []string{"1/2/3/4/5/6/7/8/9", strings.Repeat("x", turnstone.MaxGroup+1)} {
		_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "bad", Metadata: head.Metadata{Group: large}})
		s.is(err, turnstone.ErrLimit)
		s.is(p.SaveMetadata(ctx, head.Metadata{Group: large}), turnstone.ErrLimit)
	}
	s.equal("group a after all that was refused", s.sorted(turnstone.ListOptions{Group: "a"}), []string{"1", "2", "3", "4", "7", "x", "y"})
}

// listsFollow changes what lists go by, and checks that they follow at once.
func listsFollow(s *suite) {
	first := head.Metadata{Group: "app/user", Labels: map[string]string{"x": "1", "y": "1"}}
	s.create(turnstone.Request{ID: "p"})
	s.create(turnstone.Request{ID: "a", Metadata: first, Parent: "p"})
	s.create(turnstone.Request{ID: "b", Metadata: first})
	check := func(what string, group, x1, x2, children []string) {
		s.Helper()
		s.twice(func() {
			s.Helper()
			s.equal(what+": group app", s.sorted(turnstone.ListOptions{Group: "app"}), group)
			s.equal(what+": x=1", s.sorted(turnstone.ListOptions{Labels: map[string]string{"x": "1"}}), x1)
			s.equal(what+": x=2", s.sorted(turnstone.ListOptions{Labels: map[string]string{"x": "2"}}), x2)
			s.equal(what+": children of p", s.sorted(turnstone.ListOptions{Parent: "p"}), children)
		})
	}
	a, b, ab := []string{"a"}, []string{"b"}, []string{"a", "b"}
	check("created", ab, ab, nil, a)
	s.must(s.session("a").SaveMetadata(ctx, head.Metadata{Labels: map[string]string{"x": "2"}}))
	check("another label", ab, b, a, a)
	s.must(s.session("b").SaveMetadata(ctx, head.Metadata{Labels: map[string]string{"x": ""}}))
	check("no label", ab, nil, a, a)
	s.must(s.session("b").SaveMetadata(ctx, head.Metadata{Group: "application"}))
	check("another group", a, nil, a, a)
	s.must(s.session("a").SaveMetadata(ctx, head.Metadata{Labels: map[string]string{"x": "1"}}, head.FieldGroup, head.FieldLabels))
	check("no group", nil, a, nil, a)
	s.must(s.session("a").SaveMetadata(ctx, head.Metadata{Group: "app"}))
	s.commit(s.session("a"), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("x")})
	check("in the group again", a, a, nil, a)
	s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
	check("deleted", nil, nil, nil, nil)
}
