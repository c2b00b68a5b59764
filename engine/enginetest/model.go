package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// outcome returns the part of an Apply's result that must be the same for all engines.
func outcome(err error) string {
	for _, e := range []error{engine.ErrConflict, engine.ErrTooLarge, engine.ErrInvalid, engine.ErrUnknown} {
		if errors.Is(err, e) {
			var ce *engine.ConflictError
			if errors.As(err, &ce) {
				return fmt.Sprintf("%v %x", e, ce.Key)
			}
			return e.Error()
		}
	}
	return fmt.Sprint(err)
}

// randomBatch returns a batch over a few short keys, some of which extend others.
// About one guard in four is false.
func randomBatch(rng *rand.Rand, state engine.Engine) (*engine.Batch, error) {
	key := func() []byte { return bytes.Repeat([]byte{'a' + byte(rng.IntN(3))}, 1+rng.IntN(4)) }
	val := func() []byte { return bytes.Repeat([]byte{'0' + byte(rng.IntN(3))}, 1+rng.IntN(40)) }
	var b engine.Batch
	for range rng.IntN(5) {
		if rng.IntN(3) == 0 {
			b.Delete(key())
		} else {
			b.Set(key(), val())
		}
	}
	for range rng.IntN(3) {
		g := key()
		vs, err := state.Get(background, g)
		if err != nil {
			return nil, err
		}
		if rng.IntN(4) == 0 {
			vs[0] = val()
		}
		b.Guard(g, vs[0])
	}
	return &b, nil
}

// model applies one seeded random history to the engine and to a reference. The
// outcomes and the contents must be the same.
func model(r *rig) error {
	rng := rand.New(rand.NewPCG(1, 2))
	ref := memory.New()
	for i := range 600 {
		b, err := randomBatch(rng, ref)
		if err != nil {
			return err
		}
		want, got := outcome(ref.Apply(background, b)), outcome(r.e.Apply(background, b))
		if want != got {
			return fmt.Errorf("step %d: %+v: got %s, want %s", i, b, got, want)
		}
		if i%50 == 49 {
			if r.Durable && i%100 == 99 {
				if err := r.reopen(); err != nil {
					return err
				}
			} else if err := r.e.Vacuum(background); err != nil {
				return err
			}
			if err := same(ref, r.e); err != nil {
				return fmt.Errorf("after step %d: %w", i, err)
			}
		}
	}
	return same(ref, r.e)
}

// same checks that two engines hold the same pairs.
func same(want, got engine.Engine) error {
	dump := func(e engine.Engine) (out []string, err error) {
		for p, err := range e.Scan(background, engine.Range{}) {
			if err != nil {
				return nil, err
			}
			out = append(out, fmt.Sprintf("%q=%q", p.Key, p.Value))
		}
		return out, nil
	}
	w, werr := dump(want)
	g, gerr := dump(got)
	if err := errors.Join(werr, gerr); err != nil {
		return err
	}
	if fmt.Sprint(w) != fmt.Sprint(g) {
		return fmt.Errorf("state = %v, want %v", g, w)
	}
	return nil
}

// durable checks that acknowledged writes and deletes survive reopening.
func durable(r *rig) error {
	if !r.Durable {
		return errSkip
	}
	for round := range 4 {
		for i := range 20 {
			var b engine.Batch
			b.Set(fmt.Appendf(nil, "%d/%d", round, i), bytes.Repeat(k("x"), 5000))
			if round > 0 {
				b.Delete(fmt.Appendf(nil, "%d/%d", round-1, i))
			}
			if err := r.e.Apply(background, &b); err != nil {
				return err
			}
		}
		if err := r.reopen(); err != nil {
			return err
		}
		got, err := collect(r.e, engine.Range{})
		if err != nil {
			return err
		}
		if len(got) != 20 || got[0] != fmt.Sprintf("%d/0", round) {
			return fmt.Errorf("after reopening: %q", got)
		}
	}
	return nil
}

// vacuum runs Vacuum again and again beside writers. No write may be lost and no
// deleted key may come back, also after reopening.
func vacuum(r *rig) error {
	writers := make([]vacuumWriter, 4)
	errs := make([]error, len(writers)+1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range writers {
		w := &writers[i]
		w.name = fmt.Sprint("w", i)
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		wg.Go(func() { errs[i] = w.write(r.e, rng, stop) })
	}
	for range 5 {
		if errs[len(writers)] = r.e.Vacuum(background); errs[len(writers)] != nil {
			break
		}
	}
	close(stop)
	wg.Wait()
	check := func() error {
		var errs []error
		for i := range writers {
			errs = append(errs, writers[i].check(r.e))
		}
		return errors.Join(errs...)
	}
	err := errors.Join(append(errs, check())...)
	if !r.Durable || err != nil {
		return err
	}
	if err := r.reopen(); err != nil {
		return err
	}
	return check()
}

// A vacuumWriter counts up and deletes counters of its own.
type vacuumWriter struct {
	name   string
	counts [60]int // what each counter stands at; 0 means deleted
}

func (w *vacuumWriter) key(i int) []byte { return fmt.Appendf(nil, "%s/%02d", w.name, i) }

// write changes random counters until stop is closed.
func (w *vacuumWriter) write(e engine.Engine, rng *rand.Rand, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		i := rng.IntN(len(w.counts))
		var b engine.Batch
		next := w.counts[i] + 1
		if rng.IntN(4) == 0 {
			next = 0
			b.Delete(w.key(i))
		} else {
			b.Set(w.key(i), fmt.Appendf(nil, "%d %s", next, bytes.Repeat(k("."), 300)))
		}
		if err := e.Apply(background, &b); err != nil {
			return err
		}
		w.counts[i] = next
	}
}

// check compares the counters with those in the engine.
func (w *vacuumWriter) check(e engine.Engine) error {
	for i, want := range w.counts {
		vs, err := e.Get(background, w.key(i))
		if err != nil {
			return err
		}
		got := 0
		if vs[0] != nil {
			if _, err := fmt.Sscan(string(vs[0]), &got); err != nil {
				return err
			}
		}
		if got != want {
			return fmt.Errorf("%s is at %d, want %d", w.key(i), got, want)
		}
	}
	return nil
}

// vacuumBytes checks that the bytes of a deleted value are in none of the files
// after Vacuum.
func vacuumBytes(r *rig) error {
	if !r.Durable || !r.Exclusive { // only exclusive drivers have files in the directory
		return errSkip
	}
	secret := make([]byte, 64)
	rand.NewChaCha8([32]byte{42}).Read(secret)
	set, del := secretBatches(secret)
	if err := r.e.Apply(background, set); err != nil {
		return err
	}
	if err := r.reopen(); err != nil { // brings the value into every kind of file
		return err
	}
	found, err := grep(r.dir, secret)
	if err != nil {
		return err
	}
	if found == "" {
		return errors.New("the marker is not in the files even before its removal: the test shows nothing")
	}
	if err := r.e.Apply(background, del); err != nil {
		return err
	}
	if err := r.e.Vacuum(background); err != nil {
		return err
	}
	if found, err = grep(r.dir, secret); err != nil || found != "" {
		return fmt.Errorf("removed bytes are still in %s (%v)", found, err)
	}
	return expect(r.e, `["kept value" ""]`, "kept", "secret")
}

// secretBatches returns a batch that sets the secret and much else, so that the
// engine makes files and can shrink them, and a batch that deletes all but one value.
func secretBatches(secret []byte) (set, del *engine.Batch) {
	set, del = &engine.Batch{}, &engine.Batch{}
	set.Set(k("secret"), secret)
	set.Set(k("kept"), k("kept value"))
	del.Delete(k("secret"))
	for i := range 200 {
		key := fmt.Appendf(nil, "bulk%04d", i)
		v := make([]byte, 5000)
		rand.NewChaCha8([32]byte{byte(i), 1}).Read(v)
		set.Set(key, v)
		del.Delete(key)
	}
	return set, del
}

// grep returns a file below dir that contains what, or "".
func grep(dir string, what []byte) (string, error) {
	found := ""
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was removed after it was listed
		}
		if bytes.Contains(data, what) {
			found = path
		}
		return err
	})
	return found, err
}

// locked checks that a second Open of the directory fails and names this process.
func locked(r *rig) error {
	if !r.Exclusive {
		return errSkip
	}
	second, err := r.Open(r.dir)
	if err == nil {
		second.Close()
		return errors.New("a second Open succeeded")
	}
	var le *engine.LockedError
	if !errors.Is(err, engine.ErrLocked) || !errors.As(err, &le) || !bytes.Contains([]byte(le.Holder), fmt.Appendf(nil, "pid %d", os.Getpid())) {
		return fmt.Errorf("second Open: %v: want a LockedError that names this process", err)
	}
	return put(r.e, "still", "works")
}

// closed checks that a closed engine refuses every call and can be closed again.
func closed(r *rig) error {
	if err := r.e.Close(); err != nil {
		return err
	}
	_, gerr := r.e.Get(background, k("a"))
	_, serr := collect(r.e, engine.Range{})
	for op, err := range map[string]error{"Get": gerr, "Scan": serr, "Apply": put(r.e, "a", "1"), "Vacuum": r.e.Vacuum(background)} {
		if !errors.Is(err, engine.ErrClosed) && !(op == "Vacuum" && err == nil) {
			return fmt.Errorf("%s on a closed engine: %v", op, err)
		}
	}
	return r.e.Close()
}
