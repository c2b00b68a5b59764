package bundle_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle"
	"github.com/turnstonedb/turnstone/internal/bundle/bundletest"
	"github.com/turnstonedb/turnstone/internal/history"
)

func open(t *testing.T) *turnstone.Store {
	t.Helper()
	st, err := turnstone.Open(t.Context(), memory.New(), &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// frames returns the frames of a bundle but its end: their kinds, and their bodies.
func frames(t *testing.T, b []byte) (kinds string, bodies [][]byte) {
	for _, f := range bundletest.Frames(t, b) {
		kinds, bodies = kinds+string(f.Kind), append(bodies, f.Body)
	}
	return kinds, bodies
}

// sealed returns a bundle of frames, with an end that is right.
func sealed(kinds string, bodies [][]byte) []byte {
	frames := make([]bundletest.Frame, len(bodies))
	for i := range bodies {
		frames[i] = bundletest.Frame{Kind: kinds[i], Body: bodies[i]}
	}
	return bundletest.Bundle(frames...)
}

// A bundle of a session whose hashes are all right, and that no store could have written, is refused.
func TestBU3_AHostileBundleIsRefused(t *testing.T) {
	from := open(t)
	s, _, err := from.Create(t.Context(), turnstone.Request{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	part := bytes.Repeat([]byte("0123456789"), 300)
	for i := range 4 {
		part[i*100]++
		if _, err := s.Commit(t.Context(), turnstone.Commit{
			Expected: head.Revision(i), Turn: fmt.Sprint("t", i), Checkpoint: map[string][]byte{"p": bytes.Clone(part)},
			Nodes:   []turnstone.NewNode{{Kind: "u", Payload: fmt.Append(nil, i)}},
			Records: []turnstone.RecordChange{{Key: fmt.Sprint("r", i), Value: []byte("v")}}, Keep: fmt.Sprint("k", i),
		}); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if _, err := from.Bundle(t.Context(), &b, turnstone.Bundled{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	kinds, bodies := frames(t, b.Bytes())
	unbundle := func(kinds string, bodies [][]byte) error {
		st := open(t)
		_, err := st.Unbundle(t.Context(), bytes.NewReader(sealed(kinds, bodies)), turnstone.UnbundleOptions{})
		v, verr := st.Verify(t.Context(), turnstone.VerifyOptions{})
		if verr != nil || !v.OK() {
			t.Errorf("%v %v", verr, v.Problems)
		}
		return err
	}
	check := func(what, kinds string, bodies [][]byte) {
		t.Helper()
		if err := unbundle(kinds, bodies); !errors.Is(err, turnstone.ErrBundle) {
			t.Errorf("%s: %v", what, err)
		}
	}
	type edit = func(about *head.About, epoch, bytes *uint64, turns []history.Turn) []history.Turn
	edited := func(e edit) [][]byte {
		out, err := bundle.Edited(bodies, kinds, e)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	same := func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn { return turns }
	if err := unbundle(kinds, edited(same)); err != nil {
		t.Fatal("unchanged:", err)
	}
	for what, e := range map[string]edit{
		"a delta of another chain": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Parts[0].Whole = 2
			return turns
		},
		"a part of another size": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Parts[0].Size--
			return turns
		},
		"a turn id twice": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Turn = turns[1].Turn
			return turns
		},
		"a longer path": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Depth++
			return turns
		},
		"a leaf of another session": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Leaf[0]++
			turns[3].NodeDigest = turns[3].Pack.Digest()
			return turns
		},
		"a parent of another session": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Pack.Nodes[0].Parent[0]++
			return turns
		},
		"too many bytes": func(_ *head.About, _, bytes *uint64, turns []history.Turn) []history.Turn {
			*bytes = 1 << 63
			return turns
		},
		"a large epoch": func(_ *head.About, epoch, _ *uint64, turns []history.Turn) []history.Turn {
			*epoch = 1 << 60
			return turns
		},
		"a fork without an origin": func(about *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			about.Parent[0] = 1
			return turns
		},
		"a name that is too long": func(about *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			about.Name = strings.Repeat("x", turnstone.MaxText+1)
			return turns
		},
		"a kind that is too long": func(_ *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
			turns[3].Pack.Nodes[0].Kind = strings.Repeat("x", turnstone.MaxKind+1)
			return turns
		},
	} {
		check(what, kinds, edited(e))
	}
	k, r, n := strings.IndexByte(kinds, 'K'), strings.IndexByte(kinds, 'R'), len(kinds)-1
	move := func(at, to int) (string, [][]byte) {
		ks, bs := []byte(kinds), slices.Clone(bodies)
		kind, body := ks[at], bs[at]
		ks, bs = slices.Delete(ks, at, at+1), slices.Delete(bs, at, at+1)
		return string(slices.Insert(ks, to, kind)), slices.Insert(bs, to, body)
	}
	moved, in := move(k, n-1)
	check("kept revisions behind the turns", moved, in)
	check("records twice", kinds[:r]+"R"+kinds[r:], slices.Insert(slices.Clone(bodies), r, bodies[r]))
	check("a session twice", kinds+kinds, append(slices.Clone(bodies), bodies...))
	v := strings.IndexByte(kinds, 'V')
	check("a version twice", kinds[:v]+kinds[v:v+2]+kinds[v:], slices.Insert(slices.Clone(bodies), v, bodies[v], bodies[v+1]))

	// The parent of a detached session is not taken from the bundle.
	st := open(t)
	victim, _, err := st.Create(t.Context(), turnstone.Request{ID: "victim"})
	if err != nil {
		t.Fatal(err)
	}
	info, err := victim.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	foreign := edited(func(about *head.About, _, _ *uint64, turns []history.Turn) []history.Turn {
		about.Detached = true
		if _, err := hex.Decode(about.Parent[:], []byte(info.Incarnation)); err != nil {
			t.Fatal(err)
		}
		return turns
	})
	if _, err := st.Unbundle(t.Context(), bytes.NewReader(sealed(kinds, foreign)), turnstone.UnbundleOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(t.Context(), "victim", turnstone.RefuseChildren); err != nil {
		t.Error("it has become a child:", err)
	}
}

// What a small bundle announces takes no memory.
func TestBU7_ASmallBundleTakesLittleMemory(t *testing.T) {
	from := open(t)
	if _, _, err := from.Create(t.Context(), turnstone.Request{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := from.Bundle(t.Context(), &b, turnstone.Bundled{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	kinds, bodies := frames(t, b.Bytes())
	// A million turns, and bytes behind them.
	turns := append(binary.AppendUvarint(nil, 8<<20), 0x9a, 0, 0x10, 0, 0)
	turns = append(turns, make([]byte, 8<<20)...)
	small := sealed("STZ", [][]byte{bodies[0], turns, bodies[len(bodies)-1]})
	if kinds != "SZ" || len(small) > 10_000 {
		t.Fatal(kinds, len(small))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, err := open(t).Unbundle(t.Context(), bytes.NewReader(small), turnstone.UnbundleOptions{})
	runtime.ReadMemStats(&after)
	if !errors.Is(err, turnstone.ErrBundle) {
		t.Error(err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 100<<20 {
		t.Errorf("%d MiB were allocated", n>>20)
	}
}
