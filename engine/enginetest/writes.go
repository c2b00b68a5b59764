package enginetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// conflict checks that err is a conflict that names key.
func conflict(err error, key string) error {
	var ce *engine.ConflictError
	if !errors.Is(err, engine.ErrConflict) || !errors.As(err, &ce) || string(ce.Key) != key {
		return fmt.Errorf("got %v, want a conflict on %q", err, key)
	}
	return nil
}

// guards checks guards of present and absent keys against the state before the batch.
func guards(r *rig) error {
	step := func(want string, f func(b *engine.Batch)) error {
		var b engine.Batch
		f(&b)
		err := r.e.Apply(background, &b)
		if want != "" {
			return conflict(err, want)
		}
		return err
	}
	return errors.Join(
		step("", func(b *engine.Batch) { b.Guard(k("h"), nil); b.Set(k("h"), k("1")) }),
		step("h", func(b *engine.Batch) { b.Guard(k("h"), nil); b.Set(k("h"), k("2")) }),
		step("h", func(b *engine.Batch) { b.Guard(k("h"), k("2")); b.Set(k("x"), k("2")) }),
		step("h", func(b *engine.Batch) { b.Guard(k("h"), k("11")); b.Delete(k("h")) }),
		step("", func(b *engine.Batch) { b.Guard(k("h"), k("1")); b.Guard(k("h"), k("1")) }), // only guards
		step("h", func(b *engine.Batch) { b.Guard(k("h"), k("0")) }),
		step("", func(b *engine.Batch) { b.Guard(k("h"), k("1")); b.Delete(k("h")) }),
		step("h", func(b *engine.Batch) { b.Guard(k("h"), k("1")); b.Set(k("x"), k("1")) }),
		step("", func(b *engine.Batch) { b.Guard(k("h"), nil); b.Delete(k("h")); b.Delete(k("never there")) }),
		expect(r.e, `["" ""]`, "h", "x"),
	)
}

// atomic checks that a batch with one false guard changes nothing.
func atomic(r *rig) error {
	if err := put(r.e, "old", "1"); err != nil {
		return err
	}
	var b engine.Batch
	b.Set(k("a"), k("1"))
	b.Delete(k("old"))
	b.Guard(k("old"), k("1"))
	b.Guard(k("z"), k("never"))
	return errors.Join(conflict(r.e.Apply(background, &b), "z"), expect(r.e, `["" "1"]`, "a", "old"))
}

// neverHalf checks that a Scan sees every batch whole, whichever keys it has.
func neverHalf(r *rig) error {
	var werr error
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range testkit.Pick(200, 80, 40) {
			v := fmt.Sprint(i)
			if werr = put(r.e, "a", v, "m", v, "z", v); werr != nil {
				return
			}
		}
	}()
	var rerr error
	for running := true; running && rerr == nil; {
		select {
		case <-written:
			running = false
		default:
		}
		rerr = threeEqual(r.e)
	}
	<-written
	return errors.Join(werr, rerr)
}

// threeEqual checks that the engine has no pair, or three with the same value.
func threeEqual(e engine.Engine) error {
	var seen []string
	for p, err := range e.Scan(background, engine.Range{}) {
		if err != nil {
			return err
		}
		seen = append(seen, string(p.Value))
	}
	if len(seen) > 0 && (len(seen) != 3 || seen[0] != seen[1] || seen[1] != seen[2]) {
		return fmt.Errorf("saw %q: half a batch", seen)
	}
	return nil
}

// invalid checks that malformed batches are refused and have no effect.
func invalid(r *rig) error {
	for name, f := range map[string]func(b *engine.Batch){
		"empty key":       func(b *engine.Batch) { b.Set(nil, k("v")) },
		"empty value":     func(b *engine.Batch) { b.Set(k("e"), nil) },
		"key set twice":   func(b *engine.Batch) { b.Set(k("t"), k("1")); b.Set(k("t"), k("2")) },
		"set and deleted": func(b *engine.Batch) { b.Set(k("t"), k("1")); b.Delete(k("t")) },
		"empty guard key": func(b *engine.Batch) { b.Guard(nil, k("1")) },
	} {
		var b engine.Batch
		b.Set(k("first"), k("1"))
		f(&b)
		if err := r.e.Apply(background, &b); !errors.Is(err, engine.ErrInvalid) {
			return fmt.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	return expect(r.e, `["" ""]`, "first", "t")
}

// limits checks that the engine takes keys, values and batches up to its limits and
// refuses larger ones.
func limits(r *rig) error {
	l, m := r.e.Limits(), engine.MinLimits
	if l.KeyBytes < m.KeyBytes || l.ValueBytes < m.ValueBytes || l.BatchBytes < m.BatchBytes || l.BatchOps < m.BatchOps {
		return fmt.Errorf("Limits() = %+v, want at least %+v", l, m)
	}
	if err := largestPair(r.e, l); err != nil {
		return err
	}
	if err := largestBatches(r.e, l); err != nil {
		return err
	}
	return tooLarge(r.e, l)
}

// random returns n bytes that don't compress and are the same for the same n.
func random(n int) []byte {
	v := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(v)
	return v
}

// numbered returns a key for the number i.
func numbered(i int) []byte { return binary.BigEndian.AppendUint32([]byte("o"), uint32(i)) }

func largestPair(e engine.Engine, l engine.Limits) error {
	key, value := random(l.KeyBytes), random(l.ValueBytes)
	var b engine.Batch
	b.Set(key, value)
	if err := e.Apply(background, &b); err != nil {
		return fmt.Errorf("largest key and value: %w", err)
	}
	vs, err := e.Get(background, key)
	if err != nil || !bytes.Equal(vs[0], value) {
		return fmt.Errorf("largest value comes back as %d bytes, %v", len(vs[0]), err)
	}
	return nil
}

func largestBatches(e engine.Engine, l engine.Limits) error {
	var full, many engine.Batch
	value := random(l.ValueBytes)
	for i := 0; full.Bytes()+len(value)+8 <= l.BatchBytes; i++ {
		full.Set(fmt.Appendf(nil, "full%04d", i), value)
	}
	if err := e.Apply(background, &full); err != nil {
		return fmt.Errorf("largest batch: %w", err)
	}
	for i := range l.BatchOps {
		many.Set(numbered(i), k("v"))
	}
	if err := e.Apply(background, &many); err != nil {
		return fmt.Errorf("most writes: %w", err)
	}
	return nil
}

// tooLarge applies batches that each exceed one limit.
func tooLarge(e engine.Engine, l engine.Limits) error {
	value := random(l.ValueBytes)
	for name, f := range map[string]func(b *engine.Batch){
		"key":       func(b *engine.Batch) { b.Set(random(l.KeyBytes+1), k("v")) },
		"guard key": func(b *engine.Batch) { b.Guard(random(l.KeyBytes+1), nil) },
		"value":     func(b *engine.Batch) { b.Set(k("big"), random(l.ValueBytes+1)) },
		"operations": func(b *engine.Batch) {
			for i := range l.BatchOps + 1 {
				b.Delete(numbered(i))
			}
		},
		"bytes": func(b *engine.Batch) {
			for i := 0; b.Bytes() <= l.BatchBytes; i++ {
				b.Set(fmt.Appendf(nil, "big%d", i), value)
			}
		},
	} {
		var b engine.Batch
		f(&b)
		if err := e.Apply(background, &b); !errors.Is(err, engine.ErrTooLarge) {
			return fmt.Errorf("%s beyond the limit: got %v, want ErrTooLarge", name, err)
		}
	}
	return expect(e, `["" ""]`, "big", "big0")
}

// counter has workers increment one counter with guarded batches. The counter must
// end at the number of batches that succeeded.
func counter(r *rig) error {
	const workers, each = 8, 25
	ctx, cancel := bounded()
	defer cancel()
	if err := together(workers, func(int) error {
		for done := 0; done < each; {
			err := increment(ctx, r.e)
			if err == nil {
				done++
			} else if !errors.Is(err, engine.ErrConflict) {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	got, _, err := readCounter(ctx, r.e)
	if err != nil {
		return err
	}
	if got != workers*each {
		return fmt.Errorf("counter = %d, want %d: lost updates", got, workers*each)
	}
	return nil
}

// readCounter returns the counter as a number and as it is stored; absent means 0.
func readCounter(ctx context.Context, e engine.Engine) (uint64, []byte, error) {
	vs, err := e.Get(ctx, k("c"))
	switch {
	case err != nil:
		return 0, nil, err
	case vs[0] == nil:
		return 0, nil, nil
	case len(vs[0]) != 8:
		return 0, nil, fmt.Errorf("the counter is %q", vs[0])
	}
	return binary.BigEndian.Uint64(vs[0]), vs[0], nil
}

// increment adds one to the counter, unless it changes meanwhile.
func increment(ctx context.Context, e engine.Engine) error {
	n, stored, err := readCounter(ctx, e)
	if err != nil {
		return err
	}
	var b engine.Batch
	b.Guard(k("c"), stored)
	b.Set(k("c"), binary.BigEndian.AppendUint64(nil, n+1))
	return e.Apply(ctx, &b)
}

// writeSkew applies two batches at the same time, each of which guards the absence
// of the key that the other sets. Exactly one of them must succeed.
func writeSkew(r *rig) error {
	for i := range testkit.Pick(100, 50, 15) {
		keys := [2]string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
		var errs [2]error
		var wg sync.WaitGroup
		for j := range errs {
			wg.Go(func() {
				var b engine.Batch
				b.Guard(k(keys[j]), nil)
				b.Set(k(keys[1-j]), k("1"))
				errs[j] = r.e.Apply(background, &b)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil && !errors.Is(err, engine.ErrConflict) {
				return err
			}
		}
		if (errs[0] == nil) == (errs[1] == nil) {
			return fmt.Errorf("round %d: %v and %v: want exactly one to succeed", i, errs[0], errs[1])
		}
	}
	return nil
}

// readOnlyAnomaly looks for the read-only anomaly in the shape that would break
// garbage collection. A committer guards a mark and writes a reference. A collector
// rewrites the mark and then scans for references. If the scan misses the reference,
// the committer must have failed: its guard is false once the mark is rewritten.
func readOnlyAnomaly(r *rig) error {
	for i := range testkit.Pick(200, 80, 25) {
		if err := raceCollector(r.e, i); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

// raceCollector runs one committer beside one collector. The round decides which of
// them begins, and how much later the other follows.
func raceCollector(e engine.Engine, round int) error {
	mark, ref := fmt.Sprint("mark", round), fmt.Sprint("ref/", round)
	if err := put(e, mark, "live"); err != nil {
		return err
	}
	var commit, collected error
	var seen []string
	var wg sync.WaitGroup
	commits, collects := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		<-commits
		var b engine.Batch
		b.Guard(k(mark), k("live"))
		b.Set(k(ref), k("1"))
		commit = e.Apply(background, &b)
	})
	wg.Go(func() {
		<-collects
		var b engine.Batch
		b.Guard(k(mark), k("live"))
		b.Set(k(mark), k("condemned"))
		if collected = e.Apply(background, &b); collected == nil {
			seen, collected = collect(e, engine.PrefixRange(k(ref)))
		}
	})
	first, second := commits, collects
	if round%2 == 1 {
		first, second = second, first
	}
	close(first)
	time.Sleep(time.Duration(round/2%20) * 10 * time.Microsecond)
	close(second)
	wg.Wait()
	if collected != nil {
		return collected
	}
	if commit != nil && !errors.Is(commit, engine.ErrConflict) {
		return commit
	}
	if (commit == nil) != (len(seen) == 1) {
		return fmt.Errorf("commit = %v, but the scan after condemning saw %d references", commit, len(seen))
	}
	return nil
}

// notSpurious checks that batches on different keys never conflict, even if they
// share a guard.
func notSpurious(r *rig) error {
	if err := put(r.e, "shared", "1"); err != nil {
		return err
	}
	return together(16, func(w int) error {
		for i := range 20 {
			var b engine.Batch
			b.Guard(k("shared"), k("1"))
			b.Guard(fmt.Appendf(nil, "own%d/%d", w, i), nil)
			b.Set(fmt.Appendf(nil, "own%d/%d", w, i), k("1"))
			if err := r.e.Apply(background, &b); err != nil {
				return err
			}
		}
		return nil
	})
}

// cancelled checks that calls with a context that has ended fail and have no effect.
func cancelled(r *rig) error {
	ctx, cancel := context.WithCancel(background)
	cancel()
	var b engine.Batch
	b.Set(k("c"), k("1"))
	if err := r.e.Apply(ctx, &b); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("Apply = %v, want context.Canceled", err)
	}
	if _, err := r.e.Get(ctx, k("c")); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("Get = %v, want context.Canceled", err)
	}
	return expect(r.e, `[""]`, "c")
}

// zero checks that the zero value of the engine's type is a closed one.
func zero(r *rig) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // instead of for ever
	defer cancel()
	of := reflect.TypeOf(r.e)
	if of.Kind() != reflect.Pointer || strings.HasSuffix(of.Elem().PkgPath(), "_test") { // a wrapper made by a test
		return errSkip
	}
	e := reflect.New(of.Elem()).Interface().(engine.Engine)
	_, get := e.Get(ctx, []byte("k"))
	var scan error
	for _, err := range e.Scan(ctx, engine.Range{}) {
		scan = err
	}
	var b engine.Batch
	b.Set([]byte("k"), []byte("v"))
	for call, err := range map[string]error{"Get": get, "Scan": scan, "Apply": e.Apply(ctx, &b), "Vacuum": e.Vacuum(ctx)} {
		if !errors.Is(err, engine.ErrClosed) {
			return fmt.Errorf("%s of a zero engine: %w", call, err)
		}
	}
	if err := e.Close(); err != nil {
		return fmt.Errorf("Close of a zero engine: %w", err)
	}
	return nil
}
