package enginetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// conflict checks that err is a conflict that names key.
func conflict(err error, key string) error {
	var ce *engine.ConflictError
	if !errors.Is(err, engine.ErrConflict) || !errors.As(err, &ce) || string(ce.Key) != key {
		return fmt.Errorf("got %v, want a conflict on %q", err, key)
	}
	return nil
}

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

// Readers never see a part of a batch, whichever keys it touches.
func neverHalf(r *rig) error {
	keys := []string{"a", "m", "z"}
	stop := make(chan struct{})
	var werr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for i := range testscale.Pick(200, 80, 40) {
			v := fmt.Sprint(i)
			if werr = put(r.e, keys[0], v, keys[1], v, keys[2], v); werr != nil {
				return
			}
		}
	})
	var rerr error
	for running := true; running && rerr == nil; {
		select {
		case <-stop:
			running = false
		default:
		}
		var seen []string
		for p, err := range r.e.Scan(background, engine.Range{}) {
			if err != nil {
				rerr = err
				break
			}
			seen = append(seen, string(p.Value))
		}
		if len(seen) > 0 && (len(seen) != 3 || seen[0] != seen[1] || seen[1] != seen[2]) {
			rerr = fmt.Errorf("saw %q: half a batch", seen)
		}
	}
	wg.Wait()
	return errors.Join(werr, rerr)
}

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

func limits(r *rig) error {
	l, m := r.e.Limits(), engine.MinLimits
	if l.KeyBytes < m.KeyBytes || l.ValueBytes < m.ValueBytes || l.BatchBytes < m.BatchBytes || l.BatchOps < m.BatchOps {
		return fmt.Errorf("Limits() = %+v, want at least %+v", l, m)
	}
	random := func(n int) []byte {
		v := make([]byte, n)
		rng := rand.NewChaCha8([32]byte{byte(n)})
		rng.Read(v)
		return v
	}
	apply := func(f func(b *engine.Batch)) error {
		var b engine.Batch
		f(&b)
		return r.e.Apply(background, &b)
	}
	value := random(l.ValueBytes)
	key := random(l.KeyBytes)
	if err := apply(func(b *engine.Batch) { b.Set(key, value) }); err != nil {
		return fmt.Errorf("largest key and value: %w", err)
	}
	vs, err := r.e.Get(background, key)
	if err != nil || !bytes.Equal(vs[0], value) {
		return fmt.Errorf("largest value comes back as %d bytes, %v", len(vs[0]), err)
	}
	if err := apply(func(b *engine.Batch) {
		for i := 0; b.Bytes()+len(value)+8 <= l.BatchBytes; i++ {
			b.Set(fmt.Appendf(nil, "full%04d", i), value)
		}
	}); err != nil {
		return fmt.Errorf("largest batch: %w", err)
	}
	if err := apply(func(b *engine.Batch) {
		for i := range l.BatchOps {
			b.Set(binary.BigEndian.AppendUint32([]byte("o"), uint32(i)), k("v"))
		}
	}); err != nil {
		return fmt.Errorf("most writes: %w", err)
	}
	for name, f := range map[string]func(b *engine.Batch){
		"key":       func(b *engine.Batch) { b.Set(random(l.KeyBytes+1), k("v")) },
		"guard key": func(b *engine.Batch) { b.Guard(random(l.KeyBytes+1), nil) },
		"value":     func(b *engine.Batch) { b.Set(k("big"), random(l.ValueBytes+1)) },
		"operations": func(b *engine.Batch) {
			for i := range l.BatchOps + 1 {
				b.Delete(binary.BigEndian.AppendUint32([]byte("o"), uint32(i)))
			}
		},
		"bytes": func(b *engine.Batch) {
			for i := 0; b.Bytes() <= l.BatchBytes; i++ {
				b.Set(fmt.Appendf(nil, "big%d", i), value)
			}
		},
	} {
		if err := apply(f); !errors.Is(err, engine.ErrTooLarge) {
			return fmt.Errorf("%s beyond the limit: got %v, want ErrTooLarge", name, err)
		}
	}
	return expect(r.e, `["" ""]`, "big", "big0")
}

func counter(r *rig) error {
	const workers, each = 8, 25
	ctx, cancel := bounded()
	defer cancel()
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				vs, err := r.e.Get(ctx, k("c"))
				if err != nil {
					errs[w] = err
					return
				}
				next := make([]byte, 8)
				if vs[0] != nil && len(vs[0]) != 8 {
					errs[w] = fmt.Errorf("the counter is %q", vs[0])
					return
				}
				if vs[0] != nil {
					binary.BigEndian.PutUint64(next, binary.BigEndian.Uint64(vs[0]))
				}
				binary.BigEndian.PutUint64(next, binary.BigEndian.Uint64(next)+1)
				var b engine.Batch
				b.Guard(k("c"), vs[0])
				b.Set(k("c"), next)
				if err := r.e.Apply(ctx, &b); err == nil {
					done++
				} else if !errors.Is(err, engine.ErrConflict) {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	vs, err := r.e.Get(ctx, k("c"))
	if err != nil {
		return err
	}
	if len(vs[0]) != 8 {
		return fmt.Errorf("the counter is %q", vs[0])
	}
	if got := binary.BigEndian.Uint64(vs[0]); got != workers*each {
		return fmt.Errorf("counter = %d, want %d: lost updates", got, workers*each)
	}
	return nil
}

// Two batches that each guard the absence of what the other writes must not
// both succeed.
func writeSkew(r *rig) error {
	for i := range testscale.Pick(100, 50, 15) {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		var errs [2]error
		var wg sync.WaitGroup
		for j, p := range [][2]string{{a, b}, {b, a}} {
			wg.Go(func() {
				var bt engine.Batch
				bt.Guard(k(p[0]), nil)
				bt.Set(k(p[1]), k("1"))
				errs[j] = r.e.Apply(background, &bt)
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

// The read-only anomaly, in the shape that breaks garbage collection: a
// committer guards a mark and writes a reference; a collector rewrites the mark
// and then scans for references. If the collector's scan misses the reference,
// the committer must have lost, or must come after the collector's write, and
// then its guard is false.
func readOnlyAnomaly(r *rig) error {
	for i := range testscale.Pick(200, 80, 25) {
		mark, ref := fmt.Sprint("mark", i), fmt.Sprint("ref/", i)
		if err := put(r.e, mark, "live"); err != nil {
			return err
		}
		var commit, condemn error
		var seen int
		var wg sync.WaitGroup
		// Either may come first, by a hair or by far.
		committer, condemner := make(chan struct{}), make(chan struct{})
		wg.Go(func() {
			<-committer
			var b engine.Batch
			b.Guard(k(mark), k("live"))
			b.Set(k(ref), k("1"))
			commit = r.e.Apply(background, &b)
		})
		wg.Go(func() {
			<-condemner
			var b engine.Batch
			b.Guard(k(mark), k("live"))
			b.Set(k(mark), k("condemned"))
			if condemn = r.e.Apply(background, &b); condemn != nil {
				return
			}
			for _, err := range r.e.Scan(background, engine.PrefixRange(k(ref))) {
				if condemn = err; err != nil {
					return
				}
				seen++
			}
		})
		first, second := committer, condemner
		if i%2 == 1 {
			first, second = second, first
		}
		close(first)
		time.Sleep(time.Duration(i/2%20) * 10 * time.Microsecond)
		close(second)
		wg.Wait()
		if condemn != nil {
			return condemn
		}
		if commit != nil && !errors.Is(commit, engine.ErrConflict) {
			return commit
		}
		if (commit == nil) != (seen == 1) {
			return fmt.Errorf("round %d: commit = %v, but the scan after condemning saw %d references", i, commit, seen)
		}
	}
	return nil
}

// Batches on disjoint keys never conflict, even when they share a guard.
func notSpurious(r *rig) error {
	if err := put(r.e, "shared", "1"); err != nil {
		return err
	}
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := range 20 {
				var b engine.Batch
				b.Guard(k("shared"), k("1"))
				b.Guard(fmt.Appendf(nil, "own%d/%d", w, i), nil)
				b.Set(fmt.Appendf(nil, "own%d/%d", w, i), k("1"))
				if err := r.e.Apply(background, &b); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

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
