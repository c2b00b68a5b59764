package persistencetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var loads = []behaviour{
	{name: "R1_AMissingSessionIsNotFound", test: func(s *suite) {
		s.create(turnstone.Request{ID: "there"})
		for _, id := range []string{"missing", "ther", "there "} {
			_, err := s.Factory.Session(ctx, id)
			s.is(err, turnstone.ErrSessionNotFound)
		}
	}},
	{name: "R2_R4_ScopesAgreeWithAModel", test: scopes},
	{name: "R22_RevisionsMeanOneThing", test: revisions},
	{name: "R23_FieldsOfAScopeThatExcludeEachOther", test: scopesExclude},
	{name: "R14_NodesAreYieldedOneAtATime", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		for i := range head.Revision(60) {
			s.commit(p, turnstone.Commit{Expected: i, Nodes: texts(fmt.Sprint("question ", i), string(pattern(3000, byte(i))), fmt.Sprint("answer ", i))})
		}
		want := s.load(p, turnstone.Scope{}).Nodes
		s.must(p.Tombstone(ctx, want[0].ID, want[100].ID, want[101].ID, want[179].ID))
		for _, sc := range []turnstone.Scope{{}, {Full: true}, {At: 30}, {Leaf: want[90].ID}, {After: 50}, {After: 60}, {Last: 7}, {At: 40, After: 20}} {
			s.load(p, sc) // compares with Nodes
		}
		at := 0
		for n, err := range p.Nodes(ctx, turnstone.Scope{Reverse: true}) { // beside maintenance
			s.must(err)
			if at++; at%40 == 1 {
				_, err := p.Vacuum(ctx, gc.VacuumOptions{})
				s.must(err)
				s.must(p.Tombstone(ctx, n.Parent))
			}
		}
		if at < 170 || at > 176 {
			s.Fatalf("%d nodes are yielded beside vacuums", at)
		}
		for _, sc := range []turnstone.Scope{{Full: true, Last: 1}, {At: 61}, {Leaf: graph.ID{1}}} {
			_, want := p.Load(ctx, sc)
			n := 0
			for _, err := range p.Nodes(ctx, sc) {
				if n++; err == nil || want == nil || err.Error() != want.Error() {
					s.Fatalf("%+v: %v, and Load says %v", sc, err, want)
				}
			}
			s.equal("errors", n, 1)
		}
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		for _, err := range p.Nodes(ctx, turnstone.Scope{}) {
			s.is(err, turnstone.ErrSessionDeleted)
		}
	}},
	{name: "R5_TailAndAfter", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		var all []string
		for i := range 50 {
			pair := []string{fmt.Sprint("q", i), fmt.Sprint("a", i)}
			all = append(all, pair...)
			s.commit(p, turnstone.Commit{Expected: head.Revision(i), Nodes: texts(pair...)})
		}
		s.twice(func() {
			p := s.session("a")
			for _, n := range []int{1, 2, 3, 7, 99, 100, 101, 1000} {
				s.reads(p, turnstone.Scope{Last: n}, all[max(0, 100-n):]...)
			}
			for _, after := range []int{1, 25, 49, 50} {
				s.reads(p, turnstone.Scope{After: head.Revision(after)}, all[2*after:]...)
			}
			_, err := p.Load(ctx, turnstone.Scope{After: 51})
			s.is(err, turnstone.ErrRevisionNotFound)
			s.reads(p, turnstone.Scope{After: 10, At: 12}, all[20:24]...)
			s.reads(p, turnstone.Scope{Last: 3, At: 12}, all[21:24]...)
		})
		p = s.session("a")
		for _, sc := range []turnstone.Scope{{Full: true, Last: 1}, {Last: -1}, {After: 1, Last: 1}, {Full: true, Leaf: graph.ID{1}}} {
			_, err := p.Load(ctx, sc)
			s.is(err, turnstone.ErrInvalid)
		}
		_, err := p.Load(ctx, turnstone.Scope{Leaf: graph.ID{1}})
		s.is(err, turnstone.ErrNodeNotFound)
		_, err = p.Load(ctx, turnstone.Scope{At: 51})
		s.is(err, turnstone.ErrRevisionNotFound)
	}},
	{name: "R6_R7_TheStateAtEveryRevision", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		type state struct {
			nodes []string
			parts map[string]string
			usage uint64
		}
		history := []state{{parts: map[string]string{}}}
		big := pattern(30000, 1)
		for i := range 24 {
			last := history[len(history)-1]
			next := state{nodes: append(slices.Clip(last.nodes), fmt.Sprint(i)), parts: map[string]string{}, usage: last.usage + uint64(i)}
			for k, v := range last.parts {
				next.parts[k] = v
			}
			c := turnstone.Commit{Expected: head.Revision(i), Nodes: texts(fmt.Sprint(i)), Usage: []head.Usage{{Model: "m", Output: uint64(i)}}, Checkpoint: map[string][]byte{}}
			big[i*1000]++ // a small change every turn
			if i%3 != 2 {
				c.Checkpoint["big"], next.parts["big"] = bytes.Clone(big), string(big)
			}
			if i%5 == 0 {
				c.Checkpoint["small"], next.parts["small"] = fmt.Append(nil, "s", i), fmt.Sprint("s", i)
			}
			switch {
			case i%7 == 6:
				c.Drop = []string{"small", "absent"}
				delete(c.Checkpoint, "small")
				delete(next.parts, "small")
			case i%11 == 3: // an unchanged part costs nothing
				if v, ok := last.parts["small"]; ok {
					c.Checkpoint["small"] = []byte(v)
				}
			case i == 9:
				c.Checkpoint["empty"], next.parts["empty"] = nil, ""
			}
			s.commit(p, c)
			history = append(history, next)
		}
		s.twice(func() {
			p := s.session("a")
			for rev := 1; rev < len(history); rev++ {
				want := history[rev]
				s.reads(p, turnstone.Scope{At: head.Revision(rev)}, want.nodes...)
				st := s.load(p, turnstone.Scope{At: head.Revision(rev)})
				s.equal("revision", st.Revision, rev)
				s.equal("usage", st.Usage, []head.Usage{{Model: "m", Output: want.usage}})
				parts, err := p.Checkpoint(ctx, head.Revision(rev))
				s.must(err)
				s.equal("parts", len(parts), len(want.parts))
				s.equal("described parts", len(st.Parts), len(want.parts))
				for name, content := range parts {
					if string(content) != want.parts[name] {
						s.Fatalf("part %q of revision %d differs", name, rev)
					}
				}
			}
		})
	}},
	{name: "R8_UsagePerCommitAndModel", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		u := func(model string, n uint64) head.Usage {
			return head.Usage{Model: model, Input: n, Output: 2 * n, CachedInput: 3 * n, CacheWrite: 4 * n, Reasoning: 5 * n, Cost: 6 * n}
		}
		s.commit(p, turnstone.Commit{Usage: []head.Usage{u("a", 1), u("b", 10)}})
		s.commit(p, turnstone.Commit{Expected: 1})
		s.commit(p, turnstone.Commit{Expected: 2, Usage: []head.Usage{u("b", 1), u("a", 1), u("a", 1), {Model: "c"}}})
		s.twice(func() {
			info, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("totals", info.Usage, []head.Usage{u("a", 3), u("b", 11), {Model: "c"}})
			s.equal("earlier", s.load(s.session("a"), turnstone.Scope{At: 2}).Usage, []head.Usage{u("a", 1), u("b", 10)})
		})
	}},
	{name: "R9_OneNodeByIDAndByKey", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		var ids []graph.ID
		for i := range 30 {
			r := s.commit(p, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{
				{Kind: "k", Key: fmt.Sprint("key", i), Payload: pattern(i*500, byte(i))}, {Kind: "other"},
			}})
			ids = append(ids, r.Nodes...)
		}
		s.twice(func() {
			p := s.session("a")
			for i := range 30 {
				n, err := p.NodeByKey(ctx, fmt.Sprint("key", i))
				s.must(err)
				m, err := p.Node(ctx, ids[2*i])
				s.must(err)
				s.equal("node", m, n)
				if n.ID != ids[2*i] || n.Revision != head.Revision(i+1) || !bytes.Equal(n.Payload, pattern(i*500, byte(i))) {
					s.Fatalf("node %d is %v", i, n.ID)
				}
			}
			several, err := p.NodesByKey(ctx, "key7", "key30", "", "key29", "key7", "key")
			s.must(err)
			want := map[string]turnstone.Node{}
			for _, key := range []string{"key7", "key29"} {
				want[key], err = p.NodeByKey(ctx, key)
				s.must(err)
			}
			s.equal("several", several, want)
			none, err := p.NodesByKey(ctx)
			s.must(err)
			s.equal("none", len(none), 0)
			for _, key := range []string{"key", "key30", ""} {
				_, err := p.NodeByKey(ctx, key)
				s.is(err, turnstone.ErrNodeNotFound)
			}
			wrong := ids[3]
			wrong[31]++
			if _, err := p.Node(ctx, wrong); err == nil {
				s.Fatal("an id that differs in its last byte finds a node")
			}
			_, err = p.Node(ctx, graph.ID{9})
			s.is(err, turnstone.ErrNodeNotFound)
		})
	}},
	{name: "R11_PayloadsAreByteExact", large: true, test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		var want [][]byte
		for _, b := range [][]byte{
			{},
			{0},
			[]byte("\xff\xfe invalid \xc3\x28"), []byte("{\"a\": 1 }\r\n"), pattern(4095, 1), pattern(5120, 1), pattern(5121, 1),
			pattern(100_000, 2), pattern(767<<10, 3), pattern(2<<20, 4), bytes.Repeat([]byte("ab"), 3<<20), pattern(9<<20, 5),
		} {
			want = append(want, b)
			s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: b}}, Checkpoint: map[string][]byte{"p": b}})
		}
		s.twice(func() {
			p := s.session("a")
			st := s.load(p, turnstone.Scope{})
			s.equal("nodes", len(st.Nodes), len(want))
			for i, n := range st.Nodes {
				parts, err := p.Checkpoint(ctx, n.Revision)
				s.must(err)
				if !bytes.Equal(n.Payload, want[i]) || !bytes.Equal(parts["p"], want[i]) {
					s.Fatalf("payload or part %d of %d bytes differs", i, len(want[i]))
				}
			}
			if len(st.Nodes[0].Payload) != 0 {
				s.Fatal("the empty payload is not empty")
			}
		})
	}},
}

var metadata = []behaviour{
	{name: "M1_CreateRecordsAndDoesNotOverwrite", test: func(s *suite) {
		start := time.Now()
		r := turnstone.Request{ID: "a/../b\x01", Metadata: head.Metadata{Name: "n", Model: "m", Cwd: "/tmp", Labels: map[string]string{"k": "v", "empty": ""}}, Summary: true}
		s.create(r)
		r.Name, r.Summary = "other", false
		p, created, err := s.Factory.Create(ctx, r)
		s.must(err)
		s.equal("created", created, false)
		s.equal("id", p.ID(), r.ID)
		s.twice(func() {
			i, err := s.session(r.ID).Info(ctx)
			s.must(err)
			s.equal("metadata", i.Metadata, head.Metadata{Name: "n", Model: "m", Cwd: "/tmp", Labels: map[string]string{"k": "v"}})
			s.equal("rest", fmt.Sprint(i.ID, i.Summary, i.Parent, i.Revision, i.Leaf.IsZero()), fmt.Sprint(r.ID, true, "", 0, true))
			if i.Created.Before(start.Add(-time.Second)) || i.Created.After(time.Now()) || !i.Updated.Equal(i.Created) {
				s.Fatalf("created %v, updated %v", i.Created, i.Updated)
			}
		})
	}},
	{name: "M2_SavingMetadataMergesAndMovesNoRevision", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a", Metadata: head.Metadata{Name: "n", Model: "m", Labels: map[string]string{"k": "v", "gone": "x"}}})
		before, err := p.Info(ctx)
		s.must(err)
		s.must(p.SaveMetadata(ctx, head.Metadata{Cwd: "/x", Labels: map[string]string{"gone": "", "new": "1"}}))
		s.commit(p, turnstone.Commit{Expected: 0, Nodes: texts("x")}) // the head that the handle remembers is still valid
		s.must(p.SaveMetadata(ctx, head.Metadata{Name: "n2"}))
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: texts("y")})
		s.twice(func() {
			i, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("metadata", i.Metadata, head.Metadata{Name: "n2", Model: "m", Cwd: "/x", Labels: map[string]string{"k": "v", "new": "1"}})
			if !i.Created.Equal(before.Created) || !i.Updated.After(before.Updated) || i.Revision != 2 {
				s.Fatalf("created %v, updated %v, revision %d", i.Created, i.Updated, i.Revision)
			}
		})
	}},
	{name: "M10_EveryFieldOfTheMetadataComesBack", test: metadataFields},
	{name: "M11_EveryFieldOfInfoIsTold", test: infoFields},
	{name: "M5_EveryFieldAndLabelCanBeUnset", test: func(s *suite) {
		full := func() head.Metadata {
			return head.Metadata{Name: "n", Model: "m", Cwd: "/c", Group: "g/h", Retention: 7, Labels: map[string]string{"a": "1", "b": "2"}}
		}
		cases := []struct {
			m     head.Metadata
			empty []head.Field
			want  func(*head.Metadata)
		}{
			{empty: []head.Field{head.FieldName}, want: func(m *head.Metadata) { m.Name = "" }},
			{empty: []head.Field{head.FieldModel}, want: func(m *head.Metadata) { m.Model = "" }},
			{empty: []head.Field{head.FieldCwd}, want: func(m *head.Metadata) { m.Cwd = "" }},
			{empty: []head.Field{head.FieldGroup}, want: func(m *head.Metadata) { m.Group = "" }},
			{m: head.Metadata{Group: "i"}, want: func(m *head.Metadata) { m.Group = "i" }},
			{empty: []head.Field{head.FieldRetention}, want: func(m *head.Metadata) { m.Retention = 0 }},
			{empty: []head.Field{head.FieldLabels}, want: func(m *head.Metadata) { m.Labels = nil }},
			{m: head.Metadata{Labels: map[string]string{"a": ""}}, want: func(m *head.Metadata) { delete(m.Labels, "a") }},
			{m: head.Metadata{Labels: map[string]string{"a": "", "b": ""}}, want: func(m *head.Metadata) { m.Labels = nil }},
			{ // fields are unset before the others are merged
				m:     head.Metadata{Name: "other", Labels: map[string]string{"c": "3"}},
				empty: []head.Field{head.FieldLabels, head.FieldName, head.FieldCwd, head.FieldCwd},
				want: func(m *head.Metadata) {
					m.Name, m.Cwd, m.Labels = "other", "", map[string]string{"c": "3"}
				},
			},
			{
				empty: []head.Field{head.FieldName, head.FieldModel, head.FieldCwd, head.FieldGroup, head.FieldRetention, head.FieldLabels},
				want:  func(m *head.Metadata) { *m = head.Metadata{} },
			},
			{
				m: head.Metadata{Name: "only"}, empty: []head.Field{head.FieldAll},
				want: func(m *head.Metadata) { *m = head.Metadata{Name: "only"} },
			},
			{want: func(*head.Metadata) {}},
		}
		for i, c := range cases {
			p := s.create(turnstone.Request{ID: fmt.Sprint(i), Metadata: full()})
			s.is(p.SaveMetadata(ctx, head.Metadata{Name: "x"}, append(c.empty, "colour")...), turnstone.ErrInvalid)
			s.must(p.SaveMetadata(ctx, c.m, c.empty...))
		}
		s.twice(func() {
			for i, c := range cases {
				info, err := s.session(fmt.Sprint(i)).Info(ctx)
				s.must(err)
				want := full()
				c.want(&want)
				s.equal(fmt.Sprint("metadata ", i), fmt.Sprintf("%#v", info.Metadata), fmt.Sprintf("%#v", want))
			}
		})
	}},
	{name: "M12_CustomMetadataAreAnyJSON", test: custom},
	{name: "M13_SavingNothingSaysThatTheSessionWasUsed", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a", Metadata: full(0)})
		before, err := p.Info(ctx)
		s.must(err)
		s.must(p.SaveMetadata(ctx, head.Metadata{}))
		s.twice(func() {
			i, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("metadata", i.Metadata, full(0))
			if !i.Updated.After(before.Updated) || i.Revision != 0 {
				s.Fatalf("updated %v, before %v, revision %d", i.Updated, before.Updated, i.Revision)
			}
		})
	}},
	{name: "M14_MessagesAreThoseOfTheActivePath", test: messages},
	{name: "M3_M4_ListsAreOrderedStableAndFiltered", test: lists},
	{name: "M6_AGroupHasTheSessionsOfGroupsBelowIt", test: groups},
	{name: "M7_ListsFollowTheMetadata", test: listsFollow},
}

func (s *suite) pages(o turnstone.ListOptions) (ids []string) {
	s.Helper()
	for {
		page, err := s.Factory.List(ctx, o)
		s.must(err)
		for _, i := range page.Sessions {
			ids = append(ids, i.ID)
		}
		if page.Next == "" {
			return ids
		}
		if len(page.Sessions) == 0 {
			s.Fatal("an empty page with a next one")
		}
		o.After = page.Next
	}
}

// lists checks the order, the filters and the pages of a list of 90 sessions.
func lists(s *suite) {
	s.equal("empty list", s.pages(turnstone.ListOptions{}), []string(nil))
	want := s.updatedSessions()
	s.twice(func() {
		for _, limit := range []int{0, 1, 7, 89, 90, 1000} {
			s.equal(fmt.Sprint("list by ", limit), s.pages(turnstone.ListOptions{Limit: limit}), want)
		}
		s.checkFilters(want)
	})
	s.checkPagesWhileUpdated(want)
	s.checkPagesWhileUpdated(s.pages(turnstone.ListOptions{}))
	for _, bad := range []string{"x", "zz", "00"} {
		_, err := s.Factory.List(ctx, turnstone.ListOptions{After: bad})
		s.is(err, turnstone.ErrInvalid)
	}
	_, err := s.Factory.List(ctx, turnstone.ListOptions{Limit: turnstone.MaxPage + 1})
	s.is(err, turnstone.ErrLimit)
}

// updatedSessions creates 90 sessions, updates each of them in a random order, and
// returns their ids as they are to be listed: the last updated one first.
func (s *suite) updatedSessions() []string {
	s.Helper()
	const n = 90
	for i := range n {
		r := turnstone.Request{ID: fmt.Sprintf("s%02d", i), Summary: i%10 == 0, Metadata: head.Metadata{Labels: map[string]string{"mod": fmt.Sprint(i % 3), "all": "1", ".fact": fmt.Sprint(i % 3)}}}
		if i >= 80 {
			r.Parent, r.Detached = "s05", true
		}
		s.create(r)
	}
	var ids []string
	for _, i := range rand.New(rand.NewPCG(5, 6)).Perm(n) {
		id := fmt.Sprintf("s%02d", i)
		p := s.session(id)
		if i%2 == 0 {
			s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("x")})
		} else {
			s.must(p.SaveMetadata(ctx, head.Metadata{Name: "x"}))
		}
		ids = append(ids, id)
	}
	slices.Reverse(ids)
	return ids
}

// checkFilters lists the sessions of updatedSessions by label, parent and kind.
func (s *suite) checkFilters(ids []string) {
	s.Helper()
	var mod, kids, kind []string
	for _, id := range ids {
		var i int
		fmt.Sscanf(id, "s%d", &i)
		if i%3 == 1 {
			mod = append(mod, id)
		}
		if i >= 80 {
			kids = append(kids, id)
		}
		if i%10 == 0 {
			kind = append(kind, id)
		}
	}
	yes := true
	for _, limit := range []int{3, 100} {
		s.equal("by labels", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{"mod": "1", "all": "1"}}), mod)
		s.equal("by one label", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{"mod": "1"}}), mod)
		s.equal("by a label without an index", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{".fact": "1"}}), mod)
		s.equal("by labels of both kinds", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{".fact": "1", "mod": "1"}}), mod)
		s.equal("by labels of both kinds that exclude each other", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{".fact": "1", "mod": "2"}}), []string(nil))
		s.equal("by the label of all", s.pages(turnstone.ListOptions{Limit: limit, Labels: map[string]string{"all": "1"}}), ids)
		both := slices.DeleteFunc(slices.Clone(mod), func(id string) bool { return !slices.Contains(kids, id) })
		s.equal("by parent and label", s.pages(turnstone.ListOptions{Limit: limit, Parent: "s05", Labels: map[string]string{"mod": "1"}}), both)
		s.equal("by parent", s.pages(turnstone.ListOptions{Limit: limit, Parent: "s05"}), kids)
		s.equal("by kind", s.pages(turnstone.ListOptions{Limit: limit, Summary: &yes}), kind)
	}
	for _, none := range []map[string]string{{"mod": "7"}, {"all": ""}, {"other": ""}, {"al": "l1"}, {"mod": "1", "all": "2"}} {
		s.equal(fmt.Sprint("no such labels: ", none), s.pages(turnstone.ListOptions{Labels: none}), []string(nil))
	}
}

// checkPagesWhileUpdated updates sessions between two pages of a list. No session
// may be listed twice, and none that was not updated may be missed.
func (s *suite) checkPagesWhileUpdated(ids []string) {
	s.Helper()
	page, err := s.Factory.List(ctx, turnstone.ListOptions{Limit: 40})
	s.must(err)
	seen := map[string]int{}
	for _, i := range page.Sessions {
		seen[i.ID]++
	}
	moved := map[string]bool{}
	for _, i := range []int{3, 20, 41, 55, 89} {
		id := ids[i]
		moved[id] = true
		s.commit(s.session(id), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("moved")})
	}
	s.create(turnstone.Request{ID: fmt.Sprint("late", len(ids))})
	for _, id := range s.pages(turnstone.ListOptions{Limit: 11, After: page.Next}) {
		seen[id]++
	}
	for _, id := range ids {
		if seen[id] > 1 || seen[id] == 0 && !moved[id] {
			s.Fatalf("%s was listed %d times", id, seen[id])
		}
	}
}

var states = []behaviour{
	{name: "R18_RevisionZeroAndTheTimesOfNodes", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.commit(p, turnstone.Commit{Nodes: texts("one"), Checkpoint: map[string][]byte{"p": []byte("1")}})
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: texts("two"), Checkpoint: map[string][]byte{"p": []byte("2")}})
		f := s.create(turnstone.Request{ID: "f", Parent: "a"})
		s.commit(f, turnstone.Commit{Nodes: texts("three"), Checkpoint: map[string][]byte{"p": []byte("3")}})
		s.twice(func() {
			p, f := s.session("a"), s.session("f")
			begin := s.load(p, turnstone.Scope{At: turnstone.RevisionZero})
			s.equal("state before the first commit", []any{begin.Revision, len(begin.Nodes), len(begin.Parts), len(begin.Usage)}, []any{0, 0, 0, 0})
			s.reads(p, turnstone.Scope{At: turnstone.RevisionZero, Full: true})
			s.reads(f, turnstone.Scope{At: turnstone.RevisionZero}, "one", "two")
			s.reads(f, turnstone.Scope{At: turnstone.RevisionZero, Full: true}, "one", "two")
			s.reads(f, turnstone.Scope{}, "one", "two", "three")
			for of, want := range map[turnstone.Persistence]map[string][]byte{p: {}, f: {"p": []byte("2")}} {
				parts, err := of.Checkpoint(ctx, turnstone.RevisionZero)
				s.must(err)
				s.equal("checkpoint of "+of.ID(), parts, want)
			}
			// Each node has the time of its commit, wherever it is read and whoever has it.
			times := map[string]string{}
			for _, sc := range []turnstone.Scope{{}, {Full: true}, {Last: 1}, {At: 1}} {
				for _, of := range []turnstone.Persistence{p, f} {
					for _, n := range s.load(of, sc).Nodes {
						at := n.Time.Format(time.RFC3339Nano)
						if first, known := times[string(n.Payload)]; known && first != at || n.Time.IsZero() {
							s.Fatalf("%s is of %s, and of %s", n.Payload, at, first)
						}
						times[string(n.Payload)] = at
						one, err := of.Node(ctx, n.ID)
						s.must(err)
						s.equal("time of one node", one.Time, n.Time)
					}
				}
			}
			if st := s.load(f, turnstone.Scope{}); !st.Nodes[2].Time.Equal(st.Time) || st.Nodes[0].Time.After(st.Nodes[1].Time) {
				s.Errorf("%v, %v, %v; the commit is of %v", st.Nodes[0].Time, st.Nodes[1].Time, st.Nodes[2].Time, st.Time)
			}
		})
	}},
	{name: "R19_ALoadReadsThePartsThatAreAskedFor", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		large := pattern(200_000, 1)
		s.commit(p, turnstone.Commit{Checkpoint: map[string][]byte{"p": []byte("1"), "q": large, "r": nil}})
		large = append(large, "more"...)
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: texts("one"), Checkpoint: map[string][]byte{"q": large}, Drop: []string{"r"}})
		s.twice(func() {
			p := s.session("a")
			for _, c := range []struct {
				scope turnstone.Scope
				want  map[string][]byte
			}{
				{turnstone.Scope{}, nil},
				{turnstone.Scope{Parts: []string{"p", "q", "r", "none", "p"}}, map[string][]byte{"p": []byte("1"), "q": large}},
				{turnstone.Scope{Parts: []string{"r", "p"}, At: 1, Last: 3}, map[string][]byte{"p": []byte("1"), "r": nil}},
				{turnstone.Scope{Parts: []string{"q"}, At: 1}, map[string][]byte{"q": large[:200_000]}},
				{turnstone.Scope{Parts: []string{"p"}, At: turnstone.RevisionZero}, map[string][]byte{}},
			} {
				st := s.load(p, c.scope)
				s.equal("names", len(st.Contents), len(c.want))
				for name, content := range c.want {
					if got, ok := st.Contents[name]; !ok || !bytes.Equal(got, content) {
						s.Fatalf("part %s: %d bytes, want %d", name, len(got), len(content))
					}
				}
			}
		})
		_, err := s.session("a").Load(ctx, turnstone.Scope{Parts: make([]string, turnstone.MaxParts+1)})
		s.is(err, turnstone.ErrLimit)
	}},
	{name: "R19_TheContentsAreOfTheRevisionThatIsLoaded", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.commit(p, turnstone.Commit{Checkpoint: map[string][]byte{"p": []byte("1")}})
		stop, done := make(chan struct{}), make(chan error)
		go func() {
			w, err := s.Factory.Session(ctx, "a")
			for i := 1; err == nil; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				_, err = w.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: texts("x"), Checkpoint: map[string][]byte{"p": fmt.Append(nil, i+1)}})
			}
			done <- err
		}()
		for range 40 {
			st, err := p.Load(ctx, turnstone.Scope{Last: 1, Parts: []string{"p"}})
			s.must(err)
			s.equal("content", string(st.Contents["p"]), fmt.Sprint(st.Revision))
		}
		close(stop)
		s.must(<-done)
	}},
}
