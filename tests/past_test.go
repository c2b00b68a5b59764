package tests

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// randomHistories returns how many random histories a test makes.
func randomHistories() uint64 { return cmp.Or(uint64(*histories), testkit.Pick[uint64](20, 8, 4)) }

// A past is a random history of a store: sessions, forks, and what can be done to them.
type past struct {
	t     *testing.T
	r     *rand.Rand
	st    *turnstone.Store
	ids   []string
	parts map[string][]byte // the last version of each checkpoint part of each session
	n     int
	// forgets makes it delete records and release kept revisions as well, which a push does not bring.
	forgets bool
}

func newPast(t *testing.T, st *turnstone.Store, seed uint64) *past {
	p := &past{t: t, r: rand.New(rand.NewPCG(seed, 47)), st: st, parts: map[string][]byte{}}
	p.create()
	return p
}

func (p *past) may(err error) {
	p.t.Helper()
	for _, of := range []error{turnstone.ErrRevisionPruned, turnstone.ErrNodeNotFound, turnstone.ErrInvalid, turnstone.ErrExists, turnstone.ErrRevisionNotFound, turnstone.ErrSessionNotFound} {
		if errors.Is(err, of) {
			return
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) create() {
	id := fmt.Sprint("s", p.n)
	p.n++
	_, _, err := p.st.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{
		Name: "name of " + id, Group: "g/" + id, Labels: map[string]string{"a": id, ".b": "c"}, Custom: []byte(`{"x":1}`), HostCreated: time.Unix(int64(p.n), 0).UTC(),
	}})
	p.may(err)
	p.ids = append(p.ids, id)
}

// any returns a random session.
func (p *past) any() *turnstone.Session { return session(p.t, p.st, p.ids[p.r.IntN(len(p.ids))]) }

// node returns a random node that a session shows, or false.
func (p *past) node(s *turnstone.Session) (graph.ID, bool) {
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	p.may(err)
	if len(state.Nodes) == 0 {
		return graph.ID{}, false
	}
	return state.Nodes[p.r.IntN(len(state.Nodes))].ID, true
}

func (p *past) payload() []byte {
	switch p.r.IntN(8) {
	case 0:
		return random(6000+p.r.IntN(3000), uint64(p.r.IntN(5))) // a blob, which others have as well
	case 1:
		return bytes.Repeat([]byte{byte(p.r.IntN(3))}, p.r.IntN(20_000))
	}
	return random(p.r.IntN(200), p.r.Uint64())
}

func (p *past) commit() {
	s := p.any()
	c := turnstone.Commit{Expected: turnstone.AnyRevision}
	for range p.r.IntN(4) {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: p.payload()})
	}
	if len(c.Nodes) > 0 && p.r.IntN(3) == 0 {
		if id, ok := p.node(s); ok {
			c.Nodes[0].Parent = turnstone.RefTo(id)
		}
	}
	if p.r.IntN(5) == 0 {
		if id, ok := p.node(s); ok {
			c.Leaf = turnstone.RefTo(id)
		}
	}
	if p.r.IntN(3) == 0 {
		p.n++
		c.Turn = fmt.Sprint("turn ", p.n)
		c.Usage = []head.Usage{{Model: fmt.Sprint("m", p.r.IntN(3)), Input: uint64(p.r.IntN(100)), Cost: 3}}
		c.Labels = map[string]string{"l": fmt.Sprint(p.r.IntN(9))}
		if len(c.Nodes) > 0 {
			c.Nodes[0].Key = fmt.Sprint("key ", p.n)
		}
	}
	if len(c.Nodes) > 0 && p.r.IntN(4) == 0 {
		size := 100 + p.r.IntN(9000)
		if p.r.IntN(6) == 0 {
			size = 900_000 // in chunks
		}
		c.Nodes[0].Attachments = []blob.Attachment{upload(p.t, s, random(size, uint64(p.r.IntN(4))))}
	}
	if p.r.IntN(2) == 0 {
		c.Checkpoint = map[string][]byte{}
		for range 1 + p.r.IntN(2) {
			name := fmt.Sprint("part", p.r.IntN(3))
			content := slices.Clone(p.parts[s.ID()+name])
			if len(content) == 0 || p.r.IntN(6) == 0 {
				content = random(3000+p.r.IntN(3000), p.r.Uint64())
			}
			content[p.r.IntN(len(content))]++
			c.Checkpoint[name], p.parts[s.ID()+name] = content, content
		}
	} else if p.r.IntN(8) == 0 {
		c.Drop = []string{"part1"}
	}
	if p.r.IntN(6) == 0 {
		p.n++
		c.Keep = fmt.Sprint("kept ", p.n)
	}
	_, err := s.Commit(ctx, c)
	p.may(err)
}

func (p *past) fork() {
	s := p.any()
	r := turnstone.Request{ID: fmt.Sprint("s", p.n), Parent: s.ID(), Detached: p.r.IntN(6) == 0, Metadata: head.Metadata{Name: "fork"}}
	p.n++
	if p.r.IntN(3) > 0 {
		if id, ok := p.node(s); ok {
			r.ForkNode = id
		}
	}
	r.NoCheckpoint = !r.Detached && p.r.IntN(3) == 0
	_, created, err := p.st.Create(ctx, r)
	p.may(err)
	if created {
		p.ids = append(p.ids, r.ID)
	}
}

func (p *past) step() {
	switch n := p.r.IntN(40); {
	case n < 24:
		p.commit()
	case n < 27:
		p.fork()
	case n < 28:
		p.create()
	case n < 30:
		s := p.any()
		if id, ok := p.node(s); ok {
			p.may(s.Tombstone(ctx, id))
		}
	case n < 32:
		s := p.any()
		_, err := s.Prune(ctx, head.Retention(1+p.r.IntN(5)))
		p.may(err)
	case n < 33:
		vacuum(p.t, p.st)
	case n < 34:
		p.may(p.any().Seal(ctx))
	case n < 37:
		s := p.any()
		changes := []turnstone.RecordChange{{Key: fmt.Sprint("record ", p.r.IntN(5)), Value: random(p.r.IntN(100), p.r.Uint64())}}
		if p.r.IntN(3) == 0 {
			changes[0].Key = "." + changes[0].Key
		}
		if p.forgets && p.r.IntN(2) == 0 {
			changes[0].Action, changes[0].Value = turnstone.DeleteRecord, nil
		}
		if p.forgets && p.r.IntN(3) == 0 {
			kept, err := s.Kept(ctx)
			p.may(err)
			for _, k := range kept {
				p.may(s.Release(ctx, k.Name))
			}
		}
		_, err := s.ChangeRecords(ctx, changes...)
		p.may(err)
	case n < 38:
		p.may(p.any().SaveMetadata(ctx, head.Metadata{Model: fmt.Sprint("model ", p.n)}))
	case n < 39:
		if len(p.ids) > 2 {
			i := p.r.IntN(len(p.ids))
			remove(p.t, p.st, p.ids[i])
			p.ids = slices.Delete(p.ids, i, i+1)
		}
	default:
		i := p.r.IntN(len(p.ids))
		to := fmt.Sprint("renamed ", p.n)
		p.n++
		p.may(rename(ctx, p.st, p.ids[i], to))
		for _, part := range []string{"part0", "part1", "part2"} {
			p.parts[to+part] = p.parts[p.ids[i]+part]
		}
		p.ids[i] = to
	}
}

// What a caller can read of a session, as text. Names says that the parent is named.
func everythingOf(t *testing.T, st *turnstone.Store, id string, parent bool) string {
	t.Helper()
	var out bytes.Buffer
	say := func(what string, v any, err error) {
		if err != nil {
			v = turnstone.KindOf(err).Name
		}
		b, jerr := json.Marshal(v)
		if jerr != nil {
			t.Fatal(jerr)
		}
		fmt.Fprintf(&out, "%s %s\n", what, b)
	}
	s := session(t, st, id)
	info, err := s.Info(ctx)
	info.Incarnation = ""
	if !parent {
		info.Parent = ""
	}
	say("info", info, err)
	clean := func(nodes []turnstone.Node) {
		for i := range nodes {
			if nodes[i].Inherited {
				nodes[i].Revision = 0 // That of an ancestor.
			}
		}
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err == nil {
		clean(state.Nodes)
	}
	say("path", state, err)
	leaves, err := s.Leaves(ctx)
	clean(leaves)
	slices.SortFunc(leaves, func(a, b turnstone.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	say("leaves", leaves, err)
	for r := range info.Revision + 1 {
		at := r
		if r == 0 {
			at = turnstone.RevisionZero
		}
		state, err := s.Load(ctx, turnstone.Scope{At: at, Full: true})
		if err == nil {
			clean(state.Nodes)
			slices.SortFunc(state.Nodes, func(a, b turnstone.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
			for i := range state.Parts {
				state.Parts[i].Whole = 0
			}
		}
		say(fmt.Sprint("revision ", r), state, err)
		parts, err := s.Checkpoint(ctx, at)
		say("checkpoint", parts, err)
	}
	var log []any
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			say("log", nil, err)
			break
		}
		log = append(log, e)
	}
	say("log", log, nil)
	kept, err := s.Kept(ctx)
	slices.SortFunc(kept, func(a, b head.Kept) int { return strings.Compare(a.Name, b.Name) })
	say("kept", kept, err)
	records, err := s.Records(ctx, turnstone.RecordQuery{})
	records.Revision = 0
	say("records", records, err)
	all, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.Nodes {
		for _, a := range n.Attachments {
			var content bytes.Buffer
			_, err := s.ReadAttachment(ctx, &content, a.ID)
			say("attachment "+a.ID.String(), blob.Sum(content.Bytes()), err)
		}
	}
	return out.String()
}

// withoutBranches leaves out what everythingOf says of side branches.
func withoutBranches(all string) string {
	lines := slices.DeleteFunc(strings.Split(all, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "leaves ") || strings.HasPrefix(l, "revision ") || strings.HasPrefix(l, "attachment ")
	})
	return strings.Join(lines, "\n")
}

// bundleOf returns a bundle.
func bundleOf(t *testing.T, st *turnstone.Store, of ...turnstone.Bundled) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := st.Bundle(ctx, &b, of...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unbundle reads a bundle into st.
func unbundle(t *testing.T, st *turnstone.Store, b []byte) *turnstone.UnbundleReport {
	t.Helper()
	r, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sameThere fails the test unless sessions are the same in two stores.
func sameThere(t *testing.T, from, to *turnstone.Store, parents bool, ids ...string) {
	t.Helper()
	for _, id := range ids {
		want, got := everythingOf(t, from, id, parents), everythingOf(t, to, id, parents)
		if want == got {
			continue
		}
		a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Errorf("session %q: got\n%.900s\nwant\n%.900s", id, b[min(i, len(b)-1)], a[i])
				break
			}
		}
	}
}
