package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/recovery"
)

// canary is in each text that a caller gives in a test.
const canary = "canary"

// withCanaries puts the canary into each text and each content of a value.
func withCanaries(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			withCanaries(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				withCanaries(v.Field(i))
			}
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() {
			v.SetString(canary + "/" + v.String())
		}
	case reflect.Slice:
		if b, ok := v.Interface().([]byte); ok && json.Valid(b) {
			v.SetBytes([]byte(`{"` + canary + `":0}`))
		} else if ok {
			v.SetBytes([]byte(canary))
		}
		for i := range v.Len() {
			withCanaries(v.Index(i))
		}
	case reflect.Map:
		was := reflect.MakeMap(v.Type())
		for _, k := range v.MapKeys() {
			was.SetMapIndex(k, v.MapIndex(k))
		}
		v.Clear()
		for _, k := range was.MapKeys() {
			key, value := reflect.New(k.Type()).Elem(), reflect.New(v.Type().Elem()).Elem()
			key.Set(k)
			value.Set(was.MapIndex(k))
			withCanaries(key)
			withCanaries(value)
			v.SetMapIndex(key, value)
		}
	}
}

// fillWithCanaries makes sessions of a namespace whose every text is a canary.
func fillWithCanaries(t *testing.T, e engine.Engine, o *turnstone.Options) {
	t.Helper()
	st, err := turnstone.Open(ctx, e, o)
	must(t, err)
	defer st.Close()
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
	r := turnstone.Request{ID: "session"}
	testkit.Fill(&r.Metadata, 0)
	withCanaries(reflect.ValueOf(&r).Elem())
	r.Parent = ""
	s := create(t, st, r)
	_, err = s.PutAttachment(ctx, strings.NewReader(strings.Repeat(canary, 100)), -1, canary, canary)
	must(t, err)
	for range 3 {
		c := fullCommit()
		c.Stored, c.Tombstone, c.Expected, c.Nodes[0].Attachments = nil, nil, turnstone.AnyRevision, nil
		c.Records[0].Expect, c.OnPath = "", turnstone.Commit{}.OnPath
		withCanaries(reflect.ValueOf(&c).Elem())
		c.Leaf = turnstone.Ref{}
		for i := range c.Nodes {
			c.Nodes[i].Key = ""
		}
		c.Turn = ""
		_, err = s.Commit(ctx, c)
		must(t, err)
	}
	must(t, s.Seal(ctx))
	must(t, s.Keep(ctx, canary, 1))
	_, err = st.Verify(ctx, turnstone.VerifyOptions{})
	must(t, err)
	page, err := st.Records(ctx, turnstone.RecordQuery{Prefix: canary + "/"})
	must(t, err)
	if len(page.Records) == 0 {
		t.Error("no record is listed")
	}
	create(t, st, turnstone.Request{ID: canary + " fork", Parent: r.ID})
	must(t, st.Delete(ctx, canary+" fork", turnstone.KeepChildren))
}

// No text that a caller gives is in a file of an encrypted store, in its keyring, or in a line of its log.
func TestES1_NoTextIsInAFile(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		dir := t.TempDir()
		var log bytes.Buffer
		o := &turnstone.Options{Namespace: canary, InlineBytes: 1, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		e, err := pebble.Open(dir+"/store", nil)
		must(t, err)
		in := engine.Engine(e)
		if encrypted {
			ring, err := sealed.CreateKeyring(ctx, dir+"/keys", sealed.Passphrase("my passphrase"))
			must(t, err)
			must(t, ring.Add(ctx, canary))
			in, err = sealed.Open(ctx, e, ring, canary)
			must(t, err)
		}
		fillWithCanaries(t, in, o)
		pairs := 0
		for p, err := range e.Scan(ctx, engine.Range{}) {
			must(t, err)
			if bytes.Contains(p.Key, []byte(canary)) || bytes.Contains(p.Value, []byte(canary)) {
				pairs++
			}
		}
		must(t, in.Close())
		files := 0
		must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(canary)) || bytes.Contains(text, []byte("my passphrase")) {
				files++
			}
			return err
		}))
		if encrypted && pairs+files > 0 || !encrypted && (pairs < 10 || files == 0) {
			t.Errorf("encrypted: %v: the text is in %d pairs and %d files", encrypted, pairs, files)
		}
		if strings.Contains(log.String(), canary) {
			t.Errorf("the log has the text: %s", log.String())
		}
	}
}

// errorsAndMetrics keeps what an observer is told, and errors, as text.
type errorsAndMetrics struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *errorsAndMetrics) note(v any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(&o.text, "%v %+v %#v\n", v, v, v)
}

func (o *errorsAndMetrics) Begin(ctx context.Context, op turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	o.note(op)
	return ctx, func(out turnstone.Outcome) { o.note(out); o.note(out.Err) }
}

// What a session contains is in no error and in nothing that an observer is told, whichever record is damaged, whichever
// call of the engine fails, and whatever is wrong with a request.
func TestES1_NoContentIsInAnErrorOrAMetric(t *testing.T) {
	const secret = "c4n4ry"
	content := []byte(`{"text":"` + strings.Repeat(secret, 50) + `"}`)
	c := turnstone.Commit{
		Expected: turnstone.AnyRevision, Turn: "t", Nodes: []turnstone.NewNode{{Kind: "user", Key: "k", Payload: content}, {Kind: "tool", Payload: random(7000, 1)}},
		Checkpoint: map[string][]byte{"p": content}, Records: []turnstone.RecordChange{{Key: "r", Value: content}},
	}
	source, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Custom: content}})
	_, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "text/plain", "a")
	must(t, err)
	commitTo(t, s, c)
	must(t, s.Seal(ctx))
	var bundle bytes.Buffer
	_, err = st.Bundle(ctx, &bundle, turnstone.Bundled{ID: "s"})
	must(t, err)
	o := &errorsAndMetrics{}
	use := func(e engine.Engine) {
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, Observer: o, InlineBytes: 1})
		if o.note(err); err != nil {
			return
		}
		defer st.Close()
		r, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if o.note(err); r != nil {
			for _, p := range r.Problems {
				o.note(p)
			}
		}
		s, err := st.Session(ctx, "s")
		if o.note(err); err != nil {
			return
		}
		_, err = s.Load(ctx, turnstone.Scope{Full: true, Records: []string{"r"}})
		o.note(err)
		_, err = s.Checkpoint(ctx, 1)
		o.note(err)
		_, err = st.Records(ctx, turnstone.RecordQuery{})
		o.note(err)
		again, large, wrong := c, c, c
		again.Nodes = []turnstone.NewNode{{Kind: "user", Payload: append([]byte(" "), content...)}} // the turn id has another content
		large.Turn, large.Nodes = "large", []turnstone.NewNode{{Kind: "user", Key: "new", Payload: bytes.Repeat([]byte(secret), turnstone.MaxPayload/len(secret)+1)}}
		wrong.Turn, wrong.Expected, wrong.Nodes = "wrong", 99, nil
		for _, c := range []turnstone.Commit{again, large, wrong, {Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "", Payload: content}}}} {
			_, err := s.Commit(ctx, c)
			o.note(err)
		}
		_, err = s.ChangeRecords(ctx, turnstone.RecordChange{Key: "r", Value: content, Expect: turnstone.NoRecord})
		o.note(err)
		_, err = st.GC(ctx, gc.Options{Full: true})
		o.note(err)
		_, err = st.Vacuum(ctx, gc.VacuumOptions{})
		o.note(err)
	}
	all := pairs(t, source)
	for i, p := range all { // each record is damaged
		e := memory.New()
		b := engine.Batch{Sets: slices.Clone(all)}
		b.Sets[i].Value = bytes.Clone(p.Value)
		b.Sets[i].Value[len(p.Value)/2] ^= 1
		must(t, e.Apply(ctx, &b))
		use(e)
	}
	for n := 1; n < 60; n += 1 + testkit.Pick(1, 2, 9) { // each call fails
		e := memory.New()
		must(t, e.Apply(ctx, &engine.Batch{Sets: all}))
		use(&enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.N == n {
				return enginetest.Fault{Err: engine.ErrUnavailable}
			}
			return enginetest.Fault{}
		}})
	}
	for i := range bundle.Len() { // a bundle is damaged
		if i%testkit.Pick(17, 31, 301) != 0 {
			continue
		}
		text := bytes.Clone(bundle.Bytes())
		text[i] ^= 1
		_, st := onMemory(t, &turnstone.Options{Observer: o})
		_, err := st.Unbundle(ctx, bytes.NewReader(text), turnstone.UnbundleOptions{})
		o.note(err)
	}
	if text := o.text.String(); strings.Contains(text, secret) || len(text) < 10_000 {
		at := strings.Index(text, secret)
		t.Errorf("of %d bytes: …%s…", len(text), text[max(0, at-300):min(len(text), at+50)])
	}
}

// The store of an encrypted namespace is refused without its keys, for what it is.
func TestES2_AnEncryptedStoreIsKnown(t *testing.T) {
	base := memory.New()
	e := encrypted(t, base, "")
	fillRich(t, e)
	if _, err := turnstone.Open(ctx, base, nil); !errors.Is(err, turnstone.ErrEncrypted) {
		t.Error(err)
	}
	if _, err := turnstone.Open(ctx, base, &turnstone.Options{MustExist: true}); !errors.Is(err, turnstone.ErrEncrypted) {
		t.Error(err)
	}
	if _, err := turnstone.Open(ctx, base, &turnstone.Options{Namespace: "other"}); err != nil {
		t.Error(err)
	}
}

// fillRich makes a store that has records of all kinds.
func fillRich(t *testing.T, e engine.Engine) {
	t.Helper()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{InlineBytes: 1, TakeOverAfter: -1})
	must(t, err)
	rich(t, st)
	must(t, st.Close())
}

// encrypted returns an engine that encrypts a namespace of another one, with a key of its own.
func encrypted(t *testing.T, base engine.Engine, namespace string) engine.Engine {
	t.Helper()
	e, err := sealed.Open(ctx, base, storetest.Keyring(t, namespace), namespace)
	must(t, err)
	return e
}

// Whichever record was changed, or replaced by one of another key, Verify finds it.
func TestES3_VerifyFindsWhatWasTamperedWith(t *testing.T) {
	base := memory.New()
	e := encrypted(t, base, "")
	fillRich(t, e)
	var stored []engine.Pair
	for p, err := range base.Scan(ctx, engine.Range{}) {
		must(t, err)
		if !bytes.Equal(p.Key, keys.EncryptionKey("")) {
			stored = append(stored, p)
		}
	}
	for i, p := range stored {
		for _, v := range [][]byte{append(p.Value[:len(p.Value)-1:len(p.Value)-1], p.Value[len(p.Value)-1]^1), stored[(i+1)%len(stored)].Value} {
			must(t, base.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: v}}}))
			found := 0
			st, err := turnstone.Open(ctx, e, &turnstone.Options{TakeOverAfter: -1})
			if err == nil {
				r, verr := st.Verify(ctx, turnstone.VerifyOptions{})
				if err = verr; err == nil {
					found = len(r.Problems)
				}
				must(t, st.Close())
			}
			if found == 0 && err == nil {
				t.Errorf("a changed value at %x: nothing is found", p.Key)
			}
		}
		must(t, base.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
	}
}

// A copy of a store is encrypted, or decrypted, and the same store.
func TestES6_ACopyIsEncrypted(t *testing.T) {
	plain, base, back := memory.New(), memory.New(), memory.New()
	fillRich(t, plain)
	e := encrypted(t, base, "")
	for _, c := range [][2]engine.Engine{{plain, e}, {e, back}} {
		r, err := turnstone.Copy(ctx, c[0], c[1], turnstone.CopyOptions{})
		must(t, err)
		if r.Sessions == 0 {
			t.Error("nothing was copied")
		}
	}
	for p, err := range plain.Scan(ctx, engine.Range{}) {
		must(t, err)
		vs, err := back.Get(ctx, p.Key)
		must(t, err)
		if !bytes.Equal(vs[0], p.Value) && p.Key[4] != keys.Copying && p.Key[4] != keys.Maintenance {
			t.Errorf("%x differs", p.Key)
		}
	}
}

// No text that a caller gives is in an object of an encrypted backup. It is restored with its keys. Without them, it can't
// be read, also after the key was destroyed, and nothing is written over it.
func TestES7_BackupsAreEncrypted(t *testing.T) {
	dir := t.TempDir() + "/backup"
	_, st := onMemory(t, nil)
	for i := range 3 {
		create(t, st, turnstone.Request{ID: fmt.Sprint(canary, i)}, []byte(canary))
	}
	plain, ring := backup.Directory(dir), storetest.Keyring(t, "")
	to := backup.Encrypted(plain, ring, "")
	notEncrypted := backup.Directory(t.TempDir() + "/plain")
	backedUp(t, st, notEncrypted, backup.Options{})
	backedUp(t, st, to, backup.Options{})
	commitTo(t, session(t, st, canary+"1"), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("more"))})
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
	objects := func() (out map[string]string) {
		out = map[string]string{}
		must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			out[path] = string(text)
			return err
		}))
		return out
	}
	before := objects()
	for path, text := range before {
		if strings.Contains(text, canary) || strings.Contains(path, canary) {
			t.Errorf("the text is in %s", path)
		}
	}
	for name, of := range map[string][2]any{"an encrypted backup": {plain, engine.ErrEncrypted}, "a backup that is not": {backup.Encrypted(notEncrypted, ring, ""), sealed.ErrNotEncrypted}} {
		if _, err := backup.Run(ctx, st, of[0].(backup.Target), backup.Options{}); !errors.Is(err, of[1].(error)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !maps.Equal(before, objects()) {
		t.Error("something was written")
	}
	must(t, ring.Rotate(ctx, "")) // The backup is read with the older key, and goes on with the new one.
	commitTo(t, session(t, st, canary+"2"), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("more"))})
	if r := backedUp(t, st, to, backup.Options{}); r.New {
		t.Error("a rotated key begins a new generation")
	}
	asItStands(t, st, to)
	before = objects()
	must(t, ring.Destroy(ctx, ""))
	for name, without := range map[string]backup.Target{"destroyed": to, "another": backup.Encrypted(plain, storetest.Keyring(t, ""), "")} {
		if _, err := backup.Run(ctx, st, without, backup.Options{}); !errors.Is(err, sealed.ErrKey) {
			t.Errorf("%s: a run: %v", name, err)
		}
		_, other := onMemory(t, nil)
		if _, err := backup.Restore(ctx, without, other, backup.RestoreOptions{}); !errors.Is(err, sealed.ErrKey) {
			t.Errorf("%s: a restoring: %v", name, err)
		}
	}
	if !maps.Equal(before, objects()) {
		t.Error("something was written")
	}
}

// A backup whose key was forgotten is listed and verified as such, and a new generation can be begun beside it.
func TestES7_AGenerationWhoseKeyWasForgottenIsReplaced(t *testing.T) {
	base, ring := memory.New(), storetest.Keyring(t, "")
	e, err := sealed.Open(ctx, base, ring, "")
	must(t, err)
	st := openStore(t, e, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("1"))
	to := backup.Encrypted(backup.Directory(t.TempDir()+"/backup"), ring, "")
	backedUp(t, st, to, backup.Options{})
	must(t, ring.Rotate(ctx, ""))
	_, err = e.Forget(ctx)
	must(t, err)
	all, err := backup.Generations(ctx, to)
	if err != nil || len(all) != 1 || all[0].Problem == "" {
		t.Errorf("%+v, %v", all, err)
	}
	if v, err := backup.Verify(ctx, to, backup.VerifyOptions{}); err != nil || len(v.Problems) == 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := backup.Run(ctx, st, to, backup.Options{}); !errors.Is(err, sealed.ErrKey) {
		t.Error(err)
	}
	if r := backedUp(t, st, to, backup.Options{NewGeneration: true}); !r.New {
		t.Errorf("%+v", r)
	}
	got, _ := restored(t, to, backup.RestoreOptions{})
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
}

// A damaged store is read with its keys if it is encrypted, whatever of it is damaged, and as it is if it is not.
func TestES6_ADamagedStoreIsDecrypted(t *testing.T) {
	plain, base, ring := memory.New(), memory.New(), storetest.Keyring(t, "")
	fillRich(t, plain)
	e, err := sealed.Open(ctx, base, ring, "")
	must(t, err)
	fillRich(t, e)
	for _, key := range [][]byte{keys.StoreKey(""), keys.EncryptionKey("")} { // What tells of encryption is gone.
		for _, e := range []engine.Engine{plain, base} {
			must(t, e.Apply(ctx, &engine.Batch{Deletes: [][]byte{key}}))
		}
	}
	if s, err := sealed.Scanner(ctx, plain, ring, ""); s != engine.Scanner(plain) || err != nil {
		t.Error(s, err)
	}
	if s, err := sealed.Scanner(ctx, plain, nil, ""); s != engine.Scanner(plain) || err != nil {
		t.Error(s, err)
	}
	for _, r := range []*sealed.Keyring{nil, storetest.Keyring(t), storetest.Keyring(t, "other")} {
		if _, err := sealed.Scanner(ctx, base, r, ""); !errors.Is(err, sealed.ErrKey) {
			t.Error(err)
		}
	}
	s, err := sealed.Scanner(ctx, base, ring, "")
	must(t, err)
	_, to := onMemory(t, nil)
	r, err := recovery.Run(ctx, s, to, recovery.Options{})
	if err != nil || len(ids(t, to)) == 0 || r.Damaged > 0 {
		t.Errorf("%+v, %v, %q", r, err, ids(t, to))
	}
}
