package persistencetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// set returns changes that set records to texts: key, value, key, value, ….
func set(pairs ...string) (out []turnstone.RecordChange) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, turnstone.RecordChange{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return out
}

func (s *suite) change(p turnstone.Persistence, changes ...turnstone.RecordChange) []turnstone.RecordVersion {
	s.Helper()
	vs, err := p.ChangeRecords(ctx, changes...)
	s.must(err)
	s.equal("number of versions", len(vs), len(changes))
	return vs
}

// hasRecords checks the records of a session: key, value, key, value, ….
func (s *suite) hasRecords(p turnstone.Persistence, want ...string) {
	s.Helper()
	page, err := p.Records(ctx, turnstone.RecordQuery{})
	s.must(err)
	var got []string
	for _, r := range page.Records {
		got = append(got, r.Key, string(r.Value))
		one, err := p.Record(ctx, r.Key)
		s.must(err)
		s.equal("record "+r.Key, one, r)
		s.equal("session of "+r.Key, r.Session, p.ID())
	}
	if !slices.Equal(got, want) {
		s.Fatalf("records of %q: %.300q, want %.300q", p.ID(), got, want)
	}
}

// recordConflict checks that err is about a record and says what stands.
func (s *suite) recordConflict(err error, session, key string, expected, have turnstone.RecordVersion) {
	s.Helper()
	s.is(err, turnstone.ErrRecordConflict)
	var e *turnstone.RecordConflictError
	if !errors.As(err, &e) || e.Session != session || e.Key != key || e.Expected != expected || e.Version != have {
		s.Fatalf("%v; want a conflict of %s/%s, expected %s, there %s", err, session, key, expected, have)
	}
	if errors.Is(err, turnstone.ErrConflict) {
		s.Fatalf("%v is taken for a conflict of revisions", err)
	}
}

var records = []behaviour{
	{name: "RC1_RecordsAreSetReadAndDeletedBesideTheHistory", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		s.grow(p, 0, "one")
		before, err := p.Info(ctx)
		s.must(err)
		list, err := s.Factory.List(ctx, turnstone.ListOptions{})
		s.must(err)
		values := map[string]string{
			"empty": "", "zero": "\x00\x00", "not UTF-8": "\xff\xfe", "large": string(pattern(turnstone.MaxRecord, 1)), "é/ü": "key",
			".dot": "not in the list of all", strings.Repeat("k", turnstone.MaxRecordKey): "long",
		}
		start := time.Now().Add(-time.Minute)
		for k, v := range values {
			s.change(p, set(k, v)...)
		}
		s.twice(func() {
			p := s.session("a")
			for k, v := range values {
				r, err := p.Record(ctx, k)
				s.must(err)
				s.equal(k, []any{r.Session, r.Key, string(r.Value)}, []any{"a", k, v})
				if r.Time.Before(start) || r.Time.After(time.Now().Add(time.Minute)) {
					s.Fatalf("%q was set %v", k, r.Time)
				}
				_, err = s.session("b").Record(ctx, k)
				s.is(err, turnstone.ErrRecordNotFound)
			}
			after, err := p.Info(ctx)
			s.must(err)
			s.equal("info", after, before)
			page, err := s.Factory.List(ctx, turnstone.ListOptions{})
			s.must(err)
			s.equal("list", page, list)
		})
		p = s.session("a")
		gone := s.change(p, turnstone.RecordChange{Key: "zero", Action: turnstone.DeleteRecord}, turnstone.RecordChange{Key: "never", Action: turnstone.DeleteRecord})
		s.equal("versions of deleted records", gone, []turnstone.RecordVersion{turnstone.NoRecord, turnstone.NoRecord})
		s.twice(func() {
			r, err := s.session("a").Record(ctx, "zero")
			s.is(err, turnstone.ErrRecordNotFound)
			s.equal("version", r.Version, turnstone.NoRecord)
		})
	}},
	{name: "RC2_ARecordIsOnlyChangedIfItIsAsExpected", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		seen := map[turnstone.RecordVersion]bool{turnstone.NoRecord: true, "": true}
		next := func(vs []turnstone.RecordVersion) turnstone.RecordVersion {
			s.Helper()
			if seen[vs[0]] {
				s.Fatalf("version %s recurs", vs[0])
			}
			seen[vs[0]] = true
			return vs[0]
		}
		expect := func(v turnstone.RecordVersion) turnstone.RecordChange {
			return turnstone.RecordChange{Key: "k", Value: []byte("same"), Expect: v}
		}
		// The same value and key get another version each time, and after a deletion too.
		var v turnstone.RecordVersion
		for range 3 {
			first := next(s.change(p, expect(turnstone.NoRecord)))
			v = next(s.change(p, expect(first)))
			_, err := p.ChangeRecords(ctx, expect(first))
			s.recordConflict(err, "a", "k", first, v)
			_, err = p.ChangeRecords(ctx, expect(turnstone.NoRecord))
			s.recordConflict(err, "a", "k", turnstone.NoRecord, v)
			v = next(s.change(p, expect("")))
			_, err = p.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord, Expect: first})
			s.recordConflict(err, "a", "k", first, v)
			s.equal("checked", s.change(p, turnstone.RecordChange{Key: "k", Action: turnstone.CheckRecord, Expect: v}), []turnstone.RecordVersion{v})
			s.change(p, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord, Expect: v})
			s.change(p, turnstone.RecordChange{Key: "k", Action: turnstone.CheckRecord, Expect: turnstone.NoRecord})
			_, err = p.ChangeRecords(ctx, expect(v))
			s.recordConflict(err, "a", "k", v, turnstone.NoRecord)
		}
		// One that is not as expected refuses all of the call, wherever it stands.
		v = s.change(p, set("k", "1")...)[0]
		for _, wrong := range []turnstone.RecordChange{
			{Key: "m", Value: []byte("x"), Expect: v},
			{Key: "m", Action: turnstone.CheckRecord, Expect: v},
			{Key: "k", Action: turnstone.CheckRecord, Expect: turnstone.NoRecord},
		} {
			_, err := p.ChangeRecords(ctx, append(set("a", "1", "z", "1"), wrong)...)
			s.is(err, turnstone.ErrRecordConflict)
			_, err = p.ChangeRecords(ctx, append([]turnstone.RecordChange{wrong}, set("a", "1", "z", "1")...)...)
			s.is(err, turnstone.ErrRecordConflict)
		}
		s.twice(func() {
			s.hasRecords(s.session("a"), "k", "1")
			r, err := s.session("a").Record(ctx, "k")
			s.must(err)
			s.equal("version", r.Version, v)
		})
		// A handle that has seen nothing knows no less.
		p = s.session("a")
		s.change(s.session("a"), turnstone.RecordChange{Key: "k", Value: []byte("2"), Expect: v})
		_, err := p.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Expect: v})
		s.is(err, turnstone.ErrRecordConflict)
	}},
	{name: "RC2_ContradictionsAreRefused", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		for what, c := range map[string][]turnstone.RecordChange{
			"empty":                {{Key: ""}},
			"zero byte":            {{Key: "a\x00b"}},
			"UTF-8":                {{Key: "\xff"}},
			"has the key of":       {{Key: "a"}, {Key: "a", Action: turnstone.DeleteRecord}},
			"no version":           {{Key: "a", Expect: "x"}},
			"nothing is expected":  {{Key: "a", Action: turnstone.CheckRecord}},
			"is deleted":           {{Key: "a", Action: turnstone.DeleteRecord, Expect: turnstone.NoRecord}},
			"has a value":          {{Key: "a", Action: turnstone.DeleteRecord, Value: []byte("x")}},
			"none of SetRecord":    {{Key: "a", Action: 7}},
			"00000000000000000000": {{Key: "a", Expect: turnstone.RecordVersion(strings.Repeat("0", 32))}},
		} {
			_, err := p.ChangeRecords(ctx, append(set("before", "1"), c...)...)
			s.refused(err, turnstone.ErrInvalid, what)
			_, err = p.Commit(ctx, turnstone.Commit{Records: append(set("before", "1"), c...)})
			s.refused(err, turnstone.ErrInvalid, what)
		}
		for _, q := range []turnstone.RecordQuery{{Limit: -1}, {Prefix: "a\x00"}, {After: "no cursor!"}} {
			_, err := p.Records(ctx, q)
			s.is(err, turnstone.ErrInvalid)
			_, err = s.Factory.Records(ctx, q)
			s.is(err, turnstone.ErrInvalid)
		}
		s.hasRecords(p)
		none, err := p.ChangeRecords(ctx)
		s.must(err)
		s.equal("no changes", len(none), 0)
	}},
	{name: "RC3_RecordsChangeWithACommitOrNotAtAll", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		r := s.commit(p, turnstone.Commit{Nodes: texts("one"), Records: append(set("k", "1", "m", "1"), turnstone.RecordChange{Key: "n", Action: turnstone.CheckRecord, Expect: turnstone.NoRecord})})
		s.equal("no record", r.Records[2], turnstone.NoRecord)
		again, err := p.Record(ctx, "k")
		s.must(err)
		s.equal("version", again.Version, r.Records[0])
		// A conflict of the one refuses the other.
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 0, Nodes: texts("lost"), Records: set("k", "lost")})
		s.is(err, turnstone.ErrConflict)
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("lost"), Records: append(set("m", "lost"), turnstone.RecordChange{Key: "k", Expect: r.Records[1]})})
		s.recordConflict(err, "a", "k", r.Records[1], r.Records[0])
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("lost"), Records: []turnstone.RecordChange{{Key: "n", Action: turnstone.CheckRecord, Expect: r.Records[1]}}})
		s.recordConflict(err, "a", "n", r.Records[1], turnstone.NoRecord)
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "one")
			s.hasRecords(s.session("a"), "k", "1", "m", "1")
		})
		p = s.session("a")
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: texts("two"), Records: []turnstone.RecordChange{
			{Key: "k", Value: []byte("2"), Expect: r.Records[0]}, {Key: "m", Action: turnstone.DeleteRecord, Expect: r.Records[1]},
		}})
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "one", "two")
			s.hasRecords(s.session("a"), "k", "2")
		})
	}},
	{name: "RC4_ARepeatedTurnChangesNoRecords", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		turn := func(value string) turnstone.Commit {
			return turnstone.Commit{Turn: "t", Nodes: texts("one"), Records: append(set("k", value), turnstone.RecordChange{Key: "new", Expect: turnstone.NoRecord}, turnstone.RecordChange{Key: "gone", Action: turnstone.DeleteRecord})}
		}
		first := s.commit(p, turn("1"))
		all := func(value string) []turnstone.SessionCommit {
			return []turnstone.SessionCommit{
				{Session: s.session("b"), RecordsOnly: true, Commit: turnstone.Commit{Records: set("from a", value)}},
				{Session: s.session("a"), Commit: turnstone.Commit{Expected: 1, Turn: "u", Nodes: texts("two")}},
			}
		}
		together, err := s.Factory.CommitAll(ctx, all("1")...)
		s.must(err)
		s.change(p, set("k", "since")...)
		s.change(s.session("b"), set("from a", "since")...)
		s.twice(func() {
			again, err := s.session("a").Commit(ctx, turn("2"))
			s.must(err)
			s.equal("replayed", again.Replayed, true)
			s.equal("versions", again.Records, first.Records)
			rs, err := s.Factory.CommitAll(ctx, all("2")...)
			s.must(err)
			s.equal("replayed together", []bool{rs[0].Replayed, rs[1].Replayed}, []bool{true, true})
			s.equal("versions together", rs[0].Records, together[0].Records)
			s.hasRecords(s.session("a"), "k", "since", "new", "")
			s.hasRecords(s.session("b"), "from a", "since")
		})
		// Neither the order of the sessions matters, nor whether a turn is repeated alone.
		three := func() (out []turnstone.SessionCommit) {
			for i, id := range []string{"a", "b", "c"} {
				c := turnstone.SessionCommit{Session: s.session(id), RecordsOnly: i == 2, Commit: turnstone.Commit{Records: set("order", id)}}
				if i < 2 {
					c.Expected, c.Turn = turnstone.AnyRevision, "three"
				}
				out = append(out, c)
			}
			return out
		}
		s.create(turnstone.Request{ID: "c"})
		in, err := s.Factory.CommitAll(ctx, three()...)
		s.must(err)
		s.twice(func() {
			commits := three()
			slices.Reverse(commits)
			again, err := s.Factory.CommitAll(ctx, commits...)
			s.must(err)
			for i, r := range again {
				s.equal("versions in another order", r.Records, in[2-i].Records)
			}
			for i, c := range three()[:2] {
				s.equal("versions of a turn alone", s.commit(c.Session, c.Commit).Records, in[i].Records)
			}
		})
	}},
	{name: "RC5_RecordsOfSeveralSessionsChangeTogether", test: func(s *suite) {
		a, b := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		only := func(p turnstone.Persistence, changes ...turnstone.RecordChange) turnstone.SessionCommit {
			return turnstone.SessionCommit{Session: p, RecordsOnly: true, Commit: turnstone.Commit{Records: changes}}
		}
		rs, err := s.Factory.CommitAll(ctx, only(b, set("k", "b")...), turnstone.SessionCommit{Session: a, Commit: turnstone.Commit{Nodes: texts("one"), Records: set("k", "a")}})
		s.must(err)
		s.equal("result of records only", []any{rs[0].Revision, len(rs[0].Nodes), rs[0].Commit.IsZero()}, []any{0, 0, true})
		if rs[0].Records[0] == rs[1].Records[0] {
			s.Fatal("two records have one version")
		}
		none, err := s.Factory.CommitAll(ctx, only(s.create(turnstone.Request{ID: "c"})), only(b, set("m", "1")...), turnstone.SessionCommit{Session: a, Commit: turnstone.Commit{Expected: 1, Records: set("m", "1", "n", "1")}})
		s.must(err)
		s.equal("numbers of versions", []int{len(none[0].Records), len(none[1].Records), len(none[2].Records)}, []int{0, 1, 2})
		for _, m := range []struct {
			p turnstone.Persistence
			v turnstone.RecordVersion
		}{{b, none[1].Records[0]}, {a, none[2].Records[0]}} {
			s.change(m.p, turnstone.RecordChange{Key: "m", Action: turnstone.DeleteRecord, Expect: m.v})
		}
		s.change(a, turnstone.RecordChange{Key: "n", Action: turnstone.DeleteRecord})
		stands := func() {
			s.Helper()
			s.reads(s.session("a"), turnstone.Scope{}, "one")
			s.reads(s.session("b"), turnstone.Scope{})
			s.hasRecords(s.session("a"), "k", "a")
			s.hasRecords(s.session("b"), "k", "b")
		}
		s.twice(stands)
		a, b = s.session("a"), s.session("b")
		_, err = s.Factory.CommitAll(ctx, only(a, set("k", "lost")...), only(b, turnstone.RecordChange{Key: "k", Expect: rs[1].Records[0]}))
		s.recordConflict(err, "b", "k", rs[1].Records[0], rs[0].Records[0])
		_, err = s.Factory.CommitAll(ctx, only(a, set("k", "lost")...), turnstone.SessionCommit{Session: b, Commit: turnstone.Commit{Expected: 7, Nodes: texts("lost")}})
		s.is(err, turnstone.ErrConflict)
		_, err = s.Factory.CommitAll(ctx, only(a, set("k", "lost")...), turnstone.SessionCommit{Session: b, RecordsOnly: true, Commit: turnstone.Commit{Nodes: texts("lost")}})
		s.is(err, turnstone.ErrInvalid)
		s.twice(stands)
	}},
	{name: "RC13_RecordsAloneMakeTheirSession", test: func(s *suite) {
		s.create(turnstone.Request{ID: "p", Metadata: head.Metadata{Name: "parent"}})
		make := func(id, value string, expect turnstone.RecordVersion) turnstone.SessionCommit {
			return turnstone.SessionCommit{Create: &turnstone.Request{ID: id, Parent: "p", Detached: true, Metadata: full(0)}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "policy", Value: []byte(value), Expect: expect}}}}
		}
		_, err := s.Factory.CommitAll(ctx, make("a", "lost", "x"))
		s.is(err, turnstone.ErrInvalid)
		first := s.change(s.session("p"), set("k", "1")...)
		_, err = s.Factory.CommitAll(ctx, make("a", "lost", first[0]))
		s.recordConflict(err, "a", "policy", first[0], turnstone.NoRecord)
		_, err = s.Factory.Session(ctx, "a")
		s.is(err, turnstone.ErrSessionNotFound)
		rs, err := s.Factory.CommitAll(ctx, make("a", "v", turnstone.NoRecord), turnstone.SessionCommit{Create: &turnstone.Request{ID: "b"}, Commit: turnstone.Commit{Nodes: texts("one")}})
		s.must(err)
		s.equal("made", []any{rs[0].Created, rs[0].Revision, len(rs[0].Records), rs[1].Created, rs[1].Revision}, []any{true, 0, 1, true, 1})
		s.twice(func() {
			i, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("metadata", i.Metadata, full(0))
			s.equal("session", []any{i.Revision, i.Parent, i.Detached}, []any{0, "p", true})
			s.hasRecords(s.session("a"), "policy", "v")
		})
		_, err = s.Factory.CommitAll(ctx, make("a", "lost", turnstone.NoRecord))
		s.recordConflict(err, "a", "policy", turnstone.NoRecord, rs[0].Records[0])
		again, err := s.Factory.CommitAll(ctx, make("a", "w", rs[0].Records[0]))
		s.must(err)
		s.equal("made again", again[0].Created, false)
		s.twice(func() { s.hasRecords(s.session("a"), "policy", "w") })
		s.commit(s.session("a"), turnstone.Commit{Nodes: texts("one")})
		s.twice(func() { s.reads(s.session("a"), turnstone.Scope{}, "one") })
	}},
	{name: "RC8_RecordsEndWithTheirSessionAndAreInNoFork", test: func(s *suite) {
		a := s.create(turnstone.Request{ID: "a"})
		s.grow(a, 0, "one")
		s.change(a, set("k", "of a")...)
		f := s.create(turnstone.Request{ID: "f", Parent: "a"})
		s.hasRecords(f)
		s.change(f, set("k", "of f")...)
		s.hasRecords(a, "k", "of a")
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		gone := func() {
			s.Helper()
			page, err := s.Factory.Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			if len(page.Records) != 1 || page.Records[0].Session != "f" {
				s.Fatalf("%+v", page.Records)
			}
		}
		for range 2 {
			_, err := a.Record(ctx, "k")
			s.is(err, turnstone.ErrSessionDeleted)
			_, err = a.Records(ctx, turnstone.RecordQuery{})
			s.is(err, turnstone.ErrSessionDeleted)
			_, err = a.ChangeRecords(ctx, set("k", "late")...)
			s.is(err, turnstone.ErrSessionDeleted)
			_, err = s.Factory.CommitAll(ctx, turnstone.SessionCommit{Session: f, RecordsOnly: true, Commit: turnstone.Commit{Records: set("k", "lost")}},
				turnstone.SessionCommit{Session: a, RecordsOnly: true, Commit: turnstone.Commit{Records: set("k", "late")}})
			s.is(err, turnstone.ErrSessionDeleted)
			gone()
			s.hasRecords(f, "k", "of f")
			_, err = s.Factory.Vacuum(ctx, gc.VacuumOptions{}) // What was removed by then is gone, too.
			s.must(err)
		}
		s.twice(gone)
		s.hasRecords(s.create(turnstone.Request{ID: "a"}))
		gone()
	}},
	{name: "RC9_NoUpdateOfARecordIsLost", test: func(s *suite) {
		const workers, rounds, counters = 6, 12, 3
		s.create(turnstone.Request{ID: "a"})
		var wg sync.WaitGroup
		errs := make([]error, workers)
		for w := range workers {
			wg.Go(func() {
				p, err := s.Factory.Session(ctx, "a")
				for i := 0; err == nil && i < rounds; {
					key := fmt.Sprint("counter", (w+i)%counters)
					c := turnstone.RecordChange{Key: key, Expect: turnstone.NoRecord}
					n := 0
					r, rerr := p.Record(ctx, key)
					if rerr == nil {
						c.Expect = r.Version
						n, err = strconv.Atoi(string(r.Value))
					} else if !errors.Is(rerr, turnstone.ErrRecordNotFound) {
						err = rerr
					}
					if err != nil {
						break
					}
					c.Value = []byte(fmt.Sprint(n + 1))
					if i%3 == 0 { // with a commit
						_, err = p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Records: []turnstone.RecordChange{c}})
					} else {
						_, err = p.ChangeRecords(ctx, c)
					}
					if errors.Is(err, turnstone.ErrRecordConflict) {
						err = nil
					} else {
						i++
					}
				}
				errs[w] = err
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		s.twice(func() {
			sum := 0
			page, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			for _, r := range page.Records {
				n, err := strconv.Atoi(string(r.Value))
				s.must(err)
				sum += n
			}
			s.equal("sum", sum, workers*rounds)
		})
	}},
}
