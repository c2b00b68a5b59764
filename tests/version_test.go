package tests

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// ofVersion is the record p as a Turnstone with that version of the format would
// have sealed it.
func ofVersion(p engine.Pair, version byte) engine.Pair {
	v := bytes.Clone(p.Value[:len(p.Value)-4]) // type, version, body; the checksum comes last
	v[1] = version
	return engine.Pair{Key: p.Key, Value: codec.EncodeTail(p.Key, v, 0)}
}

// notDamage checks that err, if there is one, is a FormatError with these versions
// that names an object, and nothing else.
func notDamage(t *testing.T, what string, err error, have, want uint64) {
	t.Helper()
	var fe *damage.FormatError
	var corrupt *damage.CorruptError
	switch {
	case err == nil:
	case errors.As(err, &corrupt):
		t.Errorf("%s: damage is reported: %v", what, err)
	case !errors.As(err, &fe) || !errors.Is(err, damage.ErrFormat):
		t.Errorf("%s: %v", what, err)
	case errors.Is(err, damage.ErrOlder) != (have < want) || errors.Is(err, damage.ErrNewer) != (have > want):
		t.Errorf("%s: %v does not match what it is", what, err)
	case fe.Have != have || fe.Want != want || fe.Object == "":
		t.Errorf("%s: %+v, want versions %d and %d of something", what, fe, have, want)
	}
}

// A record of another version, older or newer, is named by whatever reads it,
// with both versions, and is never taken for damage. Verify finds it wherever it is.
func TestFV1_ARecordOfAnotherVersionIsNoDamage(t *testing.T) {
	e := full(t)
	all := pairs(t, e)
	about := tableOf(t, e)
	healthy, err := everything(openStore(t, e, &turnstone.Options{NoAutoSeal: true}))
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]int{}
	some := someOfEach(all, testkit.Pick(len(all), 2, 1))
	for i, p := range some {
		have := uint64(codec.Version - 1 + 2*(i%2))
		what := named[p.Key[4]]
		// changed is the store with that record, whose writes are thrown away.
		changed := func() engine.Engine {
			o := memory.NewOverlay(e)
			if err := o.Apply(ctx, &engine.Batch{Sets: []engine.Pair{ofVersion(p, byte(have))}}); err != nil {
				t.Fatal(err)
			}
			return o
		}
		for name, call := range map[string]func(*turnstone.Store) error{
			"reads": func(st *turnstone.Store) error {
				got, err := everything(st)
				if err == nil && got != healthy {
					t.Errorf("%s at %x: reads differ", what, p.Key)
				}
				return err
			},
			"verify": func(st *turnstone.Store) error {
				v, err := st.Verify(ctx, turnstone.VerifyOptions{})
				if err == nil || !v.OK() {
					t.Errorf("%s at %x: Verify returns %v with the problems %v", what, p.Key, err, v.Problems)
				}
				return err
			},
			"gc":      func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
			"full gc": func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{Full: true}); return err },
			"vacuum":  func(st *turnstone.Store) error { _, err := st.Vacuum(ctx, gc.VacuumOptions{}); return err },
		} {
			st, err := turnstone.Open(ctx, changed(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			if err == nil {
				err = call(st)
				st.Close()
			}
			notDamage(t, what+": "+name, err, have, codec.Version)
			if err != nil {
				refused[name]++
			}
			if ids := about.identities(p.Key); name == "verify" && err != nil && !(strings.Contains(err.Error(), what) &&
				slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(err.Error(), id) })) {
				t.Errorf("%s at %x: Verify names neither it nor any of %q: %v", what, p.Key, ids, err)
			}
		}
	}
	for name, n := range refused {
		if n < 5 {
			t.Errorf("%s met %d records of another version, of %d", name, n, len(some))
		}
	}
	if len(refused) != 5 || refused["verify"] != len(some) {
		t.Errorf("refused: %v, of %d records", refused, len(some))
	}
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true})) // of this version nothing is refused
}

// A store of another format is refused when it is opened, and left as it is,
// whatever the rest of its store record looks like.
func TestFV2_AStoreOfAnUnknownFormatIsRefused(t *testing.T) {
	e := memory.New()
	openStore(t, e, nil)
	key := keys.StoreKey("")
	vs, err := e.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	body := vs[0][2 : len(vs[0])-4]
	if body[0] != 0x87 || body[1] != 1 { // 7 items, the first of which is the format
		t.Fatalf("the store record begins with %x", body[:2])
	}
	for _, c := range []struct {
		name string
		body []byte
		have uint64
	}{
		{"older", append([]byte{0x88, 0}, body[2:]...), 0},
		{"newer", append([]byte{0x88, 2}, body[2:]...), 2},
		{"newer, with a field that this version does not know", append([]byte{0x89, 2, 7}, body[2:]...), 2},
		{"older, with one field", []byte{0x81, 0}, 0},
	} {
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: codec.Encode(key, keys.Store, c.body)}}}); err != nil {
			t.Fatal(err)
		}
		_, err := turnstone.Open(ctx, e, nil)
		if err == nil {
			t.Errorf("%s: opened", c.name)
		}
		notDamage(t, c.name, err, c.have, 1)
		if err != nil && !strings.Contains(err.Error(), c.name[:5]+" version of turnstone wrote it") {
			t.Errorf("%s: %v does not say who wrote it", c.name, err)
		}
		if _, err := turnstone.Copy(ctx, e, memory.New(), turnstone.CopyOptions{}); !errors.Is(err, damage.ErrFormat) {
			t.Errorf("%s: copy: %v", c.name, err)
		}
		after, err := e.Get(ctx, key)
		if err != nil || !bytes.Equal(after[0], codec.Encode(key, keys.Store, c.body)) {
			t.Errorf("%s: the record was changed: %x, %v", c.name, after, err)
		}
	}
	if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: vs[0]}}}); err != nil {
		t.Fatal(err)
	}
	openStore(t, e, nil) // the format of this version

	// Without a store record the note of a copy says whether one is to come.
	copied := full(t)
	noteKey := keys.CopyingKey("")
	vs, err = copied.Get(ctx, noteKey)
	if err != nil {
		t.Fatal(err)
	}
	note := ofVersion(engine.Pair{Key: noteKey, Value: vs[0]}, codec.Version+1)
	if err := copied.Apply(ctx, &engine.Batch{Sets: []engine.Pair{note}, Deletes: [][]byte{key}}); err != nil {
		t.Fatal(err)
	}
	_, err = turnstone.Open(ctx, copied, nil)
	if err == nil {
		t.Error("a store was made over a copy")
	}
	notDamage(t, "note of a copy", err, codec.Version+1, codec.Version)
}
