package tests

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/storetest"
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

// A session in another store has everything that it has where it comes from.
func TestBU1_ABundleHasEverythingOfItsSessions(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			p := newPast(t, st, seed)
			for range 20 + p.r.IntN(60) {
				p.step()
			}
			all := make([]turnstone.Bundled, len(p.ids))
			for i, id := range p.ids {
				all[i].ID = id
			}
			p.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			_, to := onMemory(t, nil)
			unbundle(t, to, bundleOf(t, st, all...))
			sameThere(t, st, to, false, p.ids...)
			verify(t, to)
			vacuum(t, st)
			vacuum(t, to)
			// A side branch below the floor may be held by a fork there, which has a copy of it here.
			for _, id := range p.ids {
				if want, got := withoutBranches(everythingOf(t, st, id, false)), withoutBranches(everythingOf(t, to, id, false)); want != got {
					t.Errorf("session %q: got\n%s\nwant\n%s", id, got, want)
				}
			}
			verify(t, to)

			// One by one, into a store that has had other sessions before.
			_, to = onMemory(t, nil)
			for _, of := range all {
				unbundle(t, to, bundleOf(t, st, of))
				sameThere(t, st, to, false, of.ID)
			}
			verify(t, to)
		})
	}
}

// Bundles go from any engine to any other.
func TestBU1_BundlesGoBetweenAllEngines(t *testing.T) {
	stores := map[string]*turnstone.Store{}
	var names []string
	for name, start := range storetest.Engines {
		e, err := start(t)()
		must(t, err)
		t.Cleanup(func() { e.Close() })
		stores[name], names = openStore(t, e, nil), append(names, name)
	}
	slices.Sort(names)
	p := newPast(t, stores[names[0]], 11)
	for range 40 {
		p.step()
	}
	var all []turnstone.Bundled
	for _, id := range p.ids {
		all = append(all, turnstone.Bundled{ID: id})
	}
	for i, name := range names[1:] {
		unbundle(t, stores[name], bundleOf(t, stores[names[i]], all...))
		sameThere(t, stores[names[i]], stores[name], i > 0, p.ids...)
		verify(t, stores[name])
		// What has arrived goes on, and comes back.
		s := session(t, stores[name], p.ids[0])
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte(name))})
		unbundle(t, stores[names[i]], bundleOf(t, stores[name], turnstone.Bundled{ID: p.ids[0]}))
		sameThere(t, stores[name], stores[names[i]], false, p.ids[0])
		verify(t, stores[names[i]])
	}
}

// A session that goes on gets what it does not have, and stays the same session.
func TestBU2_AThinBundleBringsASessionForward(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			_, to := onMemory(t, nil)
			p := newPast(t, st, seed)
			for range 6 {
				for range 5 + p.r.IntN(20) {
					p.step()
				}
				var of []turnstone.Bundled
				for _, id := range p.ids {
					b := turnstone.Bundled{ID: id}
					if s, err := to.Session(ctx, id); err == nil && p.r.IntN(4) > 0 {
						info, err := s.Info(ctx)
						if err != nil {
							t.Fatal(err)
						}
						b.Since = info.Revision
					}
					of = append(of, b)
				}
				var b bytes.Buffer
				if _, err := st.Bundle(ctx, &b, of...); err != nil {
					t.Fatal(err)
				}
				// A fork may need nodes that its parent hides by now, and then it comes alone. A session can't go on from
				// a node that only the other side has pruned.
				if _, err := to.Unbundle(ctx, &b, turnstone.UnbundleOptions{}); err != nil {
					if !errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrRevisionPruned) {
						t.Fatal(err)
					}
					for _, id := range p.ids {
						alone := bundleOf(t, st, turnstone.Bundled{ID: id})
						_, err := to.Unbundle(ctx, bytes.NewReader(alone), turnstone.UnbundleOptions{})
						if errors.Is(err, turnstone.ErrRevisionPruned) {
							remove(t, to, id)
							_, err = to.Unbundle(ctx, bytes.NewReader(alone), turnstone.UnbundleOptions{})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, id := range p.ids {
					here, err := session(t, to, id).Info(ctx)
					there, err2 := session(t, st, id).Info(ctx)
					if err != nil || err2 != nil || here.Commit != there.Commit {
						t.Fatal(err, err2, here.Commit, there.Commit)
					}
				}
				if p.r.IntN(2) == 0 {
					vacuum(t, to)
				}
				verify(t, to)
			}
		})
	}
}

// frame is a frame of a bundle: its kind and its body.
type frame struct {
	kind byte
	body []byte
}

// framesOf returns the frames of a bundle but the last one.
func framesOf(t testing.TB, b []byte) (out []frame) {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(b[len(bundle.Magic):]))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	all, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) > 0 {
		n, m := binary.Uvarint(all[1:])
		out = append(out, frame{all[0], all[1+m : 1+m+int(n)]})
		all = all[1+m+int(n):]
	}
	return out[:len(out)-1]
}

// sealedBundle returns a bundle of frames, with an end that is right.
func sealedBundle(frames []byte, sections int) []byte {
	sum := codec.BundleHash.Sum(frames)
	end := codec.Encoder{}
	end.Array(2)
	end.Uint(uint64(sections))
	end.Bytes(sum[:])
	out := bytes.NewBufferString(bundle.Magic)
	z, _ := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	_, _ = z.Write(frames)
	_, _ = z.Write(append(binary.AppendUvarint([]byte{'E'}, uint64(len(end.B))), end.B...))
	_ = z.Close()
	return out.Bytes()
}

// sealedFrames is sealedBundle for frames that are in pieces.
func sealedFrames(frames []frame) []byte {
	var all []byte
	n := 0
	for _, f := range frames {
		if f.kind == 'S' {
			n++
		}
		all = append(binary.AppendUvarint(append(all, f.kind), uint64(len(f.body))), f.body...)
	}
	return sealedBundle(all, n)
}

// richStore is a store with all that a bundle can have, and its sessions.
func richStore(t *testing.T, seed uint64) (*turnstone.Store, []turnstone.Bundled) {
	_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	p := newPast(t, st, seed)
	for range 60 {
		p.step()
	}
	var all []turnstone.Bundled
	for _, id := range p.ids {
		all = append(all, turnstone.Bundled{ID: id})
	}
	return st, all
}

// refused fails the test unless st refuses a bundle with a typed error, and has no session afterwards.
func refused(t *testing.T, st *turnstone.Store, what string, b []byte) {
	t.Helper()
	_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
	var typed *turnstone.BundleError
	if !errors.As(err, &typed) || !errors.Is(err, turnstone.ErrBundle) {
		t.Errorf("%s: %v", what, err)
	}
	if page, err := st.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) > 0 {
		t.Fatal(what, page, err)
	}
}

// Damage of a bundle shows before anything of it is visible.
func TestBU3_ADamagedBundleIsRefusedAsAWhole(t *testing.T) {
	from, all := richStore(t, 3)
	b := bundleOf(t, from, all...)
	_, st := onMemory(t, nil)
	r := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		cut := r.IntN(len(b))
		refused(t, st, fmt.Sprint("cut at ", cut), b[:cut])
	}
	for range 60 {
		flipped := slices.Clone(b)
		at := r.IntN(len(b))
		flipped[at] ^= 1 << r.IntN(8)
		if got, err := st.Unbundle(ctx, bytes.NewReader(flipped), turnstone.UnbundleOptions{}); err == nil {
			t.Errorf("byte %d of %d: %+v", at, len(b), got)
		}
	}
	refused(t, st, "more behind it", append(slices.Clone(b), 0))
	refused(t, st, "twice", append(slices.Clone(b), b...))

	// With a right end, too.
	frames := framesOf(t, b)
	for i, f := range frames {
		if f.kind == 'K' || f.kind == 'R' {
			continue // A bundle without them is a bundle.
		}
		without := slices.Delete(slices.Clone(frames), i, i+1)
		_, err := st.Unbundle(ctx, bytes.NewReader(sealedFrames(without)), turnstone.UnbundleOptions{})
		if err == nil && f.kind != 'X' {
			t.Errorf("without frame %d of kind %c: it is accepted", i, f.kind)
		}
		for _, info := range infosOf(t, st) {
			remove(t, st, info.ID)
		}
	}
	collect(t, st, gc.Options{})
	vacuum(t, st)
	verify(t, st)
	unbundle(t, st, b)
	verify(t, st)
	for _, s := range all {
		sameThere(t, from, st, false, s.ID)
	}
}

func infosOf(t testing.TB, st *turnstone.Store) []turnstone.Info {
	page, err := st.List(ctx, turnstone.ListOptions{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return page.Sessions
}

// Whatever is accepted leaves a store that verifies, and what is refused leaves nothing.
func FuzzUnbundle(f *testing.F) {
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, InlineBytes: 1, TakeOverAfter: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { st.Close() })
	s, _, err := st.Create(ctx, turnstone.Request{ID: "a"})
	if err != nil {
		f.Fatal(err)
	}
	a, err := s.PutAttachment(ctx, strings.NewReader("attached"), -1, "text/plain", "a.txt")
	if err != nil {
		f.Fatal(err)
	}
	r, err := s.Commit(ctx, turnstone.Commit{
		Turn: "t", Usage: []head.Usage{{Model: "m", Input: 1}}, Checkpoint: map[string][]byte{"p": bytes.Repeat([]byte("part "), 300)}, Keep: "k",
		Nodes: []turnstone.NewNode{{Kind: "u", Key: "k", Payload: []byte("hello")}, {Kind: "u", Payload: random(6000, 1), Attachments: []blob.Attachment{a}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{
		Expected: 1, Nodes: sayingAfter(r.Nodes[0], []byte("branch")), Checkpoint: map[string][]byte{"p": append(bytes.Repeat([]byte("part "), 300), 'x')},
		Records: []turnstone.RecordChange{{Key: "r", Value: []byte("v")}},
	}); err != nil {
		f.Fatal(err)
	}
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "b", Parent: "a", ForkNode: r.Nodes[0]}); err != nil {
		f.Fatal(err)
	}
	if err := s.Tombstone(ctx, r.Nodes[1]); err != nil {
		f.Fatal(err)
	}
	for _, of := range [][]turnstone.Bundled{{{ID: "a"}}, {{ID: "b"}}, {{ID: "a"}, {ID: "b"}}, {{ID: "a", Since: 1}}} {
		var b bytes.Buffer
		if _, err := st.Bundle(ctx, &b, of...); err != nil {
			f.Fatal(err)
		}
		var all []byte
		for _, fr := range framesOf(f, b.Bytes()) {
			all = append(binary.AppendUvarint(append(all, fr.kind), uint64(len(fr.body))), fr.body...)
		}
		f.Add(all, byte(len(of)))
	}
	f.Fuzz(func(t *testing.T, frames []byte, sections byte) {
		st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
		_, err := st.Unbundle(ctx, bytes.NewReader(sealedBundle(frames, int(sections))), turnstone.UnbundleOptions{MaxBytes: 1 << 20})
		if err != nil && !errors.Is(err, turnstone.ErrBundle) && !errors.Is(err, turnstone.ErrConflict) {
			t.Fatal(err)
		}
		verify(t, st)
		for _, info := range infosOf(t, st) {
			_ = everythingOf(t, st, info.ID, true)
		}
		vacuum(t, st)
		verify(t, st)
	})
}

// A vacuum beside Unbundle removes what nobody sees yet, and that is written again.
func TestBU4_UnbundlingRunsBesideMaintenance(t *testing.T) {
	_, from := onMemory(t, nil)
	parent := create(t, from, turnstone.Request{ID: "parent"})
	commitTo(t, parent, partOf(0))
	commitTo(t, create(t, from, turnstone.Request{ID: "fork", Parent: "parent"}), turnstone.Commit{Nodes: saying([]byte("goes on"))})
	rich, all := richStore(t, 40)
	for _, of := range []struct {
		st  *turnstone.Store
		all []turnstone.Bundled
	}{{from, []turnstone.Bundled{{ID: "fork"}}}, {rich, all}} {
		b := bundleOf(t, of.st, of.all...)
		for name, maintain := range map[string]func(*turnstone.Store){
			"gc":     func(st *turnstone.Store) { collect(t, st, gc.Options{}) },
			"full":   func(st *turnstone.Store) { collect(t, st, gc.Options{Full: true}) },
			"vacuum": func(st *turnstone.Store) { vacuum(t, st); vacuum(t, st) },
		} {
			for n := 1; ; n += testkit.Pick(2, 1+len(of.all), 1+4*len(of.all)) {
				m := memory.New()
				beside := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
				hit := false
				st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
					if c.Apply == n {
						hit = true
						maintain(beside)
					}
					return enginetest.Fault{}
				}}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
				// A vacuum may erase what only a fork shows that is not there yet.
				_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
				if err != nil && (name != "vacuum" || !errors.Is(err, turnstone.ErrConflict) || !errors.Is(err, turnstone.ErrIncomplete)) {
					t.Fatal(err)
				}
				if !hit {
					break
				}
				for range 3 {
					collect(t, beside, gc.Options{})
					vacuum(t, beside)
				}
				if v := verify(t, st); !v.OK() {
					t.Fatalf("%s before apply %d", name, n)
				}
				for _, s := range of.all {
					if err != nil {
						unbundle(t, st, bundleOf(t, of.st, s)) // alone
					}
					if want, got := withoutBranches(everythingOf(t, of.st, s.ID, false)), withoutBranches(everythingOf(t, st, s.ID, false)); want != got {
						t.Fatalf("%s before apply %d: session %q: got\n%s\nwant\n%s", name, n, s.ID, got, want)
					}
				}
			}
		}
	}
}

// Whatever call fails or is the last one, a session is there whole or not at all, and the next call goes on.
func TestBU4_AnInterruptedUnbundleGoesOn(t *testing.T) {
	from, all := richStore(t, 5)
	b := bundleOf(t, from, all...)
	for n := 1; ; n += testkit.Pick(2, 8, 20) {
		m := memory.New()
		openStore(t, m, &turnstone.Options{NoAutoSeal: true})
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
		again := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
		verify(t, again)
		for _, i := range infosOf(t, again) {
			sameThere(t, from, again, false, i.ID)
		}
		if n%2 == 0 {
			vacuum(t, again)
		}
		unbundle(t, again, b)
		verify(t, again)
		for _, s := range all {
			sameThere(t, from, again, false, s.ID)
		}
		if err == nil {
			break
		}
	}
}

// Sessions that have gone different ways stay as they are, and the error says where they parted.
func TestBU5_SessionsThatHaveDivergedStayAsTheyAre(t *testing.T) {
	_, here := onMemory(t, nil)
	_, there := onMemory(t, nil)
	s := create(t, there, turnstone.Request{ID: "a"}, []byte("one"), []byte("two"))
	unbundle(t, here, bundleOf(t, there, turnstone.Bundled{ID: "a"}))
	common, err := s.Info(ctx)
	must(t, err)
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("there"))})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("there again"))})
	mine := session(t, here, "a")
	commitTo(t, mine, turnstone.Commit{Nodes: saying([]byte("here"))})
	before := everythingOf(t, here, "a", true)
	now, err := mine.Info(ctx)
	must(t, err)
	then, err := s.Info(ctx)
	must(t, err)
	want := turnstone.DivergedError{
		Session: "a", Here: turnstone.Point{Revision: 3, Commit: now.Commit}, There: turnstone.Point{Revision: 4, Commit: then.Commit},
		Common: turnstone.Point{Revision: 2, Commit: common.Commit},
	}
	for _, since := range []head.Revision{0, 1, 2} {
		b := bundleOf(t, there, turnstone.Bundled{ID: "a", Since: since})
		_, err := here.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
		var diverged *turnstone.DivergedError
		if !errors.As(err, &diverged) || !errors.Is(err, turnstone.ErrDiverged) || *diverged != want {
			t.Errorf("since %d: %v, want %v", since, err, &want)
		}
		if since == 0 {
			r, err := here.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{As: "a/theirs"})
			if err != nil || !r.Sessions[0].Created || r.Sessions[0].ID != "a/theirs" {
				t.Error(r, err)
			}
		}
	}
	if everythingOf(t, here, "a", true) != before {
		t.Error("the session was changed")
	}
	theirs, err := session(t, here, "a/theirs").Info(ctx)
	if err != nil || theirs.Commit != then.Commit {
		t.Error(theirs.Commit, err)
	}
	// One that is behind changes nothing, and another session of the id is no such session.
	if r := unbundle(t, there, bundleOf(t, there, turnstone.Bundled{ID: "a"})); r.Sessions[0].From != 4 || r.Sessions[0].To != 4 || r.Sessions[0].Created {
		t.Error(r)
	}
	old := bundleOf(t, there, turnstone.Bundled{ID: "a"})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	if r := unbundle(t, there, old); r.Sessions[0].From != 5 || r.Sessions[0].To != 5 {
		t.Error(r)
	}
	_, third := onMemory(t, nil)
	create(t, third, turnstone.Request{ID: "a"})
	if _, err := third.Unbundle(ctx, bytes.NewReader(old), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	_, fourth := onMemory(t, nil)
	thin := bundleOf(t, there, turnstone.Bundled{ID: "a", Since: 2})
	if _, err := fourth.Unbundle(ctx, bytes.NewReader(thin), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	remove(t, there, "a") // A deleted session comes back, as a new one with the old ids.
	unbundle(t, there, old)
	if i, err := session(t, there, "a").Info(ctx); err != nil || i.Commit != then.Commit {
		t.Error(i, err)
	}
	verify(t, there)
	verify(t, here)
}

// What was tombstoned is not in a bundle, but where a fork of the bundle still shows it.
func TestBU6_WhatIsHiddenIsNotInABundle(t *testing.T) {
	_, st := onMemory(t, nil)
	a := create(t, st, turnstone.Request{ID: "a"}, []byte("first"), []byte("SECRET"))
	secret := commitTo(t, a, turnstone.Commit{Nodes: attaching(upload(t, a, []byte("HIDDEN")))}).Nodes[0]
	state, err := a.Load(ctx, turnstone.Scope{})
	must(t, err)
	create(t, st, turnstone.Request{ID: "early", Parent: "a"}, []byte("goes on"))
	must(t, a.Tombstone(ctx, state.Nodes[1].ID, secret))
	create(t, st, turnstone.Request{ID: "late", Parent: "a"}, []byte("goes on"))
	commitTo(t, a, turnstone.Commit{Nodes: saying([]byte("LATER"))})
	has := func(text string, ids ...string) bool {
		var of []turnstone.Bundled
		for _, id := range ids {
			of = append(of, turnstone.Bundled{ID: id})
		}
		for _, f := range framesOf(t, bundleOf(t, st, of...)) {
			if bytes.Contains(f.body, []byte(text)) {
				return true
			}
		}
		return false
	}
	for _, secret := range []string{"SECRET", "HIDDEN"} {
		for _, ids := range [][]string{{"a"}, {"late"}, {"a", "late"}} {
			if has(secret, ids...) {
				t.Errorf("%s is in a bundle of %v", secret, ids)
			}
		}
		if !has(secret, "early") || !has(secret, "a", "early") || !has(secret, "late", "early") {
			t.Error("a fork shows it, and has it not in the bundle")
		}
	}
	if has("LATER", "early") || has("LATER", "late") {
		t.Error("a bundle of a fork has what its parent was told later")
	}
	for _, ids := range [][]string{{"a", "early", "late"}, {"early", "late"}, {"late"}, {"early"}} {
		_, to := onMemory(t, nil)
		var of []turnstone.Bundled
		for _, id := range ids {
			of = append(of, turnstone.Bundled{ID: id})
		}
		unbundle(t, to, bundleOf(t, st, of...))
		vacuum(t, to)
		sameThere(t, st, to, len(ids) == 3, ids...)
		verify(t, to)
	}
}

// A bundle may be limited before it takes memory or space.
func TestBU7_ABundleExpandsToNoMoreThanItMay(t *testing.T) {
	_, from := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	for i := range 64 {
		commitTo(t, s, turnstone.Commit{Nodes: saying(bytes.Repeat([]byte{byte(i)}, 1<<20))})
	}
	b := bundleOf(t, from, turnstone.Bundled{ID: "a"})
	if len(b) > 64<<10 {
		t.Errorf("64 MiB of equal bytes take %d", len(b))
	}
	_, st := onMemory(t, nil)
	_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{MaxBytes: 1 << 20})
	var limit *turnstone.LimitError
	if !errors.As(err, &limit) || limit.Max != 1<<20 || !errors.Is(err, turnstone.ErrBundle) {
		t.Error(err)
	}
	if len(infosOf(t, st)) > 0 {
		t.Error("a session is there")
	}
	unbundle(t, st, b)
	verify(t, st)
}

// partOf returns a commit of a checkpoint part that is stored whole.
func partOf(r int) turnstone.Commit {
	return turnstone.Commit{Nodes: saying(fmt.Append(nil, "turn ", r)), Checkpoint: map[string][]byte{"p": random(6000, uint64(r))}}
}

// What the other side has pruned is pruned here in the batch that brings it, so a call that is cut off leaves nothing that
// can't be read.
func TestBU2_TheFloorComesWithTheCommits(t *testing.T) {
	_, from := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	for r := range 3 {
		commitTo(t, s, partOf(r))
	}
	start := bundleOf(t, from, turnstone.Bundled{ID: "a"})
	for r := range 40 {
		c := partOf(3 + r)
		for range 9 { // so that there are several batches
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: random(4500, uint64(r))})
		}
		if r == 10 {
			c.Keep = "kept"
		}
		commitTo(t, s, c)
	}
	prune(t, s, 35) // of 43, of which the other store has 3
	vacuum(t, from)
	more := bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3})
	for n := 1; ; n++ {
		m := memory.New()
		unbundle(t, openStore(t, m, nil), start)
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		_, err := st.Unbundle(ctx, bytes.NewReader(more), turnstone.UnbundleOptions{})
		again := openStore(t, m, nil)
		verify(t, again)
		if _, err := session(t, again, "a").Checkpoint(ctx, 0); err != nil {
			t.Error(err)
		}
		collect(t, again, gc.Options{Full: true})
		vacuum(t, again)
		verify(t, again)
		unbundle(t, again, more)
		sameThere(t, from, again, true, "a")
		verify(t, again)
		if err == nil {
			break
		}
	}
}

// A name for a revision that is pruned here does not come, and what is pruned there of what is here is shown here.
func TestBU2_WhatIsHereIsPrunedHereOnly(t *testing.T) {
	_, there := onMemory(t, nil)
	_, here := onMemory(t, nil)
	s := create(t, there, turnstone.Request{ID: "a"})
	root := commitTo(t, s, partOf(0)).Nodes[0]
	side := commitTo(t, s, partOf(1)).Nodes[0]
	c := partOf(2)
	c.Nodes[0].Parent = turnstone.RefTo(root)
	commitTo(t, s, c)
	for r := range 3 {
		commitTo(t, s, partOf(3+r))
	}
	b := bundleOf(t, there, turnstone.Bundled{ID: "a"})
	unbundle(t, here, b)
	mine := session(t, here, "a")
	prune(t, mine, 1)
	vacuum(t, here)
	must(t, s.Keep(ctx, "pruned here", 2))
	commitTo(t, s, partOf(6))
	unbundle(t, here, bundleOf(t, there, turnstone.Bundled{ID: "a", Since: 6}))
	if kept, err := mine.Kept(ctx); err != nil || len(kept) > 0 {
		t.Error(kept, err)
	}
	verify(t, here)

	_, other := onMemory(t, nil)
	unbundle(t, other, b)
	theirs := session(t, other, "a")
	commitTo(t, theirs, turnstone.Commit{Nodes: sayingAfter(side, []byte("goes on"))})
	must(t, s.Release(ctx, "pruned here"))
	_, third := onMemory(t, nil)
	unbundle(t, third, b)
	prune(t, session(t, third, "a"), 1)
	vacuum(t, third) // It prunes the side branch.
	unbundle(t, other, bundleOf(t, third, turnstone.Bundled{ID: "a"}))
	state, err := theirs.Load(ctx, turnstone.Scope{})
	must(t, err)
	if len(state.Nodes) != 3 {
		t.Errorf("%d nodes on the path, want 3", len(state.Nodes))
	}
	verify(t, other)
}

// What is pruned there of the new revisions comes in one batch, or not at all. A name that this side has, or gets, keeps
// what is pruned here with it.
func TestBU2_APrunedRunComesInOneBatch(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	for r := range 3 {
		commitTo(t, s, partOf(r))
	}
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	must(t, s.Keep(ctx, "theirs", 2))
	for r := range 10 {
		commitTo(t, s, partOf(3+r))
	}
	prune(t, s, 1)
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3}))
	sameThere(t, from, to, true, "a")
	verify(t, to)
	for r := range 60 {
		c := partOf(20 + r)
		for i := range 20 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: random(4500, uint64(100*r+i))})
		}
		commitTo(t, s, c)
	}
	prune(t, s, 1)
	before := everythingOf(t, to, "a", true)
	more := bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 13})
	if _, err := to.Unbundle(ctx, bytes.NewReader(more), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrRevisionPruned) || errors.Is(err, turnstone.ErrIncomplete) {
		t.Error(err)
	}
	if everythingOf(t, to, "a", true) != before {
		t.Error("the session was changed")
	}
	verify(t, to)
}

// Of metadata and records the later ones stay, whenever they come.
func TestBU2_TheLaterRecordStays(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	var bundles [][]byte
	for i := range 3 {
		change(t, s, turnstone.RecordChange{Key: "r", Value: []byte{byte(i)}})
		must(t, s.SaveMetadata(ctx, head.Metadata{Name: fmt.Sprint("name ", i)}))
		bundles = append(bundles, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	}
	for _, i := range []int{0, 2, 1} {
		unbundle(t, to, bundles[i])
	}
	sameThere(t, from, to, true, "a")
	verify(t, to)
}

// A session can't go on from a node that was pruned here, its last one included.
func TestBU2_ItDoesNotGoOnFromWhatIsPrunedHere(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	root := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("root"))}).Nodes[0]
	side := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("side"))}).Nodes[0]
	commitTo(t, s, turnstone.Commit{Leaf: turnstone.RefTo(root)})
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	prune(t, session(t, to, "a"), 1)
	vacuum(t, to)
	commitTo(t, s, turnstone.Commit{Nodes: sayingAfter(side, []byte("goes on"))})
	if _, err := to.Unbundle(ctx, bytes.NewReader(bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3})), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	verify(t, to)
}

// Parts and records are brought in batches that have room for them.
func TestBU2_ManyLargePartsAndRecordsComeForward(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	parts := map[string][]byte{}
	for i := range 60 {
		parts[fmt.Sprint("p", i)] = random(50_000, uint64(i))
		if len(parts)%20 == 0 {
			commitTo(t, s, turnstone.Commit{Checkpoint: parts})
		}
	}
	next := map[string][]byte{}
	for name, content := range parts {
		next[name] = append(slices.Clone(content), 'x')
	}
	commitTo(t, s, turnstone.Commit{Checkpoint: next})
	prune(t, s, 1) // Their versions come whole.
	for i := range 60 {
		change(t, s, turnstone.RecordChange{Key: fmt.Sprint("r", i), Value: random(60_000, uint64(i))})
	}
	vacuum(t, from)
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	verify(t, to)
	got, err := session(t, to, "a").Checkpoint(ctx, 0)
	if err != nil || len(got) != len(next) {
		t.Fatal(len(got), err)
	}
	for name, content := range next {
		if !bytes.Equal(got[name], content) {
			t.Error(name)
		}
	}
	for i := range 60 {
		if r, err := session(t, to, "a").Record(ctx, fmt.Sprint("r", i)); err != nil || len(r.Value) != 60_000 {
			t.Error(err)
		}
	}
}

// What is erased while a bundle is written makes it fail, rather than be refused elsewhere.
func TestBU6_AnErasureBesideIsAConflict(t *testing.T) {
	for n := 1; ; n++ {
		m, beside := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		s := create(t, beside, turnstone.Request{ID: "a"}, []byte("one"), random(9000, 1), []byte("three"))
		state, err := s.Load(ctx, turnstone.Scope{})
		must(t, err)
		armed, reads, hit := false, 0, false
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
			if armed {
				if reads++; reads == n {
					armed, hit = false, true
					_, err := s.Erase(ctx, turnstone.EraseOptions{}, state.Nodes[1].ID)
					must(t, err)
				}
			}
			return enginetest.Fault{}
		}}, &turnstone.Options{NoAutoSeal: true})
		armed = true
		var b bytes.Buffer
		_, err = st.Bundle(ctx, &b, turnstone.Bundled{ID: "a"})
		switch {
		case err == nil:
			_, to := onMemory(t, nil)
			unbundle(t, to, b.Bytes())
			verify(t, to)
		case !errors.Is(err, turnstone.ErrConflict):
			t.Errorf("call %d: %v", n, err)
		}
		if !hit {
			break
		}
	}
}
