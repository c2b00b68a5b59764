package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
)

var background = context.Background()

func k(s string) []byte { return []byte(s) }

// put applies one batch that sets keys: kv is key, value, key, value, …
func put(e engine.Engine, kv ...string) error {
	var b engine.Batch
	for i := 0; i < len(kv); i += 2 {
		b.Set(k(kv[i]), k(kv[i+1]))
	}
	return e.Apply(background, &b)
}

// values returns the values of keys as one string; an absent value is "".
func values(e engine.Engine, keys ...string) (string, error) {
	ks := make([][]byte, len(keys))
	for i, s := range keys {
		ks[i] = k(s)
	}
	vs, err := e.Get(background, ks...)
	return fmt.Sprintf("%q", vs), err
}

// expect checks that Get of keys returns values that are written like want.
func expect(e engine.Engine, want string, keys ...string) error {
	got, err := values(e, keys...)
	if err == nil && got != want {
		err = fmt.Errorf("Get(%q) = %s, want %s", keys, got, want)
	}
	return err
}

// collect returns the keys of a range.
func collect(e engine.Engine, r engine.Range) (keys []string, err error) {
	for p, err := range e.Scan(background, r) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, string(p.Key))
	}
	return keys, nil
}

// getMissing reads absent keys, one key twice, and no key at all.
func getMissing(r *rig) error {
	if err := put(r.e, "b", "1"); err != nil {
		return err
	}
	vs, err := r.e.Get(background, k("a"), k("b"), k("c"), k("b"))
	if err != nil {
		return err
	}
	if len(vs) != 4 || vs[0] != nil || string(vs[1]) != "1" || vs[2] != nil || string(vs[3]) != "1" {
		return fmt.Errorf("Get = %q", vs)
	}
	vs, err = r.e.Get(background)
	if err != nil || len(vs) != 0 {
		return fmt.Errorf("Get() = %q, %v", vs, err)
	}
	return nil
}

// getSnapshot has a writer move one token between two keys. A Get of both must see
// exactly one token.
func getSnapshot(r *rig) error {
	if err := put(r.e, "x", "1"); err != nil {
		return err
	}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		failed = moveToken(r.e, 300)
	}()
	for {
		vs, err := r.e.Get(background, k("x"), k("y"))
		if err != nil {
			return err
		}
		if (vs[0] == nil) == (vs[1] == nil) {
			return fmt.Errorf("Get saw %q: not one snapshot", vs)
		}
		select {
		case <-done:
			return failed
		default:
		}
	}
}

// scanSnapshot has a writer move one token between the first and the last of OnePage keys with values of
// 4,000 bytes. A Scan of them must see exactly one token.
func scanSnapshot(r *rig) error {
	var b engine.Batch
	for i := range engine.OnePage - 1 {
		b.Set(k(fmt.Sprintf("xx%02d", i)), make([]byte, 4000))
	}
	b.Set(k("x"), k("1"))
	if err := r.e.Apply(background, &b); err != nil {
		return err
	}
	stop, moved := make(chan struct{}), make(chan error)
	go func() {
		for {
			if err := moveToken(r.e, 2); err != nil {
				moved <- err
				return
			}
			select {
			case <-stop:
				moved <- nil
				return
			default:
			}
		}
	}()
	err := tokensSeen(r.e)
	close(stop)
	return errors.Join(err, <-moved)
}

// tokensSeen scans again and again, and fails if a scan does not see one token.
func tokensSeen(e engine.Engine) error {
	for range 200 {
		found, err := collect(e, engine.Range{Start: k("x"), Limit: engine.OnePage})
		if err != nil {
			return err
		}
		if len(found) != engine.OnePage || slices.Contains(found, "x") == slices.Contains(found, "y") {
			return fmt.Errorf("Scan saw %d pairs, %q to %q: not one snapshot", len(found), found[0], found[len(found)-1])
		}
	}
	return nil
}

// moveToken moves the token from key x to key y and back, so many times in all.
func moveToken(e engine.Engine, times int) error {
	from, to := "x", "y"
	for range times {
		var b engine.Batch
		b.Set(k(to), k("1"))
		b.Delete(k(from))
		if err := e.Apply(background, &b); err != nil {
			return err
		}
		from, to = to, from
	}
	return nil
}

// scanOrder scans ranges over keys of which some extend others.
func scanOrder(r *rig) error {
	keys := []string{"\x00", "\x00\x00", "\x00\x01", "\x01", "A", "a", "a\x00", "a\x00b", "ab", "b", "\xfe\xff", "\xff", "\xff\xff", "\xff\xff\xff"}
	var b engine.Batch
	for _, i := range rand.Perm(len(keys)) {
		b.Set(k(keys[i]), k("v"))
	}
	if err := r.e.Apply(background, &b); err != nil {
		return err
	}
	for _, c := range []struct {
		r    engine.Range
		want []string
	}{
		{engine.Range{}, keys},
		{engine.PrefixRange(k("a")), keys[5:9]},
		{engine.PrefixRange([]byte{0xff}), keys[11:]},
		{engine.Range{Start: k("a\x00"), End: k("b")}, keys[6:9]},
		{engine.Range{Start: k("a\x00\x00"), End: k("ab")}, keys[7:8]},
		{engine.Range{Start: k("b"), End: k("a")}, nil},
		{engine.Range{Start: k("a"), End: k("a")}, nil},
		{engine.Range{End: []byte{}}, nil},
		{engine.Range{Start: engine.Successor(k("a")), Limit: 2}, keys[6:8]},
	} {
		got, err := collect(r.e, c.r)
		if err != nil {
			return err
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
			return fmt.Errorf("Scan(%q, %q) = %q, want %q", c.r.Start, c.r.End, got, c.want)
		}
	}
	return nil
}

// scanLimit checks that a Scan yields no more pairs than its limit, and that a
// reader that breaks out of the loop holds no lock.
func scanLimit(r *rig) error {
	if err := fill(r.e, "k", 2500); err != nil {
		return err
	}
	for _, limit := range []int{1, 999, 1000, 1001, 2000, 2500, 9999} {
		got, err := collect(r.e, engine.Range{Limit: limit})
		if err != nil {
			return err
		}
		if len(got) != min(limit, 2500) {
			return fmt.Errorf("limit %d gave %d pairs", limit, len(got))
		}
	}
	n := 0
	for _, err := range r.e.Scan(background, engine.Range{}) {
		if err != nil {
			return err
		}
		if n++; n == 3 {
			break
		}
	}
	return put(r.e, "after", "break")
}

// fill sets n keys that begin with prefix. Their values have 1 to 500 bytes.
func fill(e engine.Engine, prefix string, n int) error {
	var b engine.Batch
	for i := range n {
		b.Set(fmt.Appendf(nil, "%s%05d", prefix, i), bytes.Repeat([]byte{'v'}, 1+i%500))
	}
	return e.Apply(background, &b)
}

// scanPages scans values of many sizes, so that some pages end because they have
// enough pairs and others because they have enough bytes.
func scanPages(r *rig) error {
	want := 0
	for i := range 8 {
		if err := fill(r.e, fmt.Sprint("p", i, "/"), 1500); err != nil {
			return err
		}
		want += 1500
	}
	var last []byte
	n := 0
	for p, err := range r.e.Scan(background, engine.PrefixRange(k("p"))) {
		if err != nil {
			return err
		}
		if n++; last != nil && bytes.Compare(last, p.Key) >= 0 {
			return fmt.Errorf("%q after %q", p.Key, last)
		}
		if len(p.Value) != 1+(n-1)%1500%500 {
			return fmt.Errorf("%q has %d bytes", p.Key, len(p.Value))
		}
		last = p.Key
	}
	if n != want {
		return fmt.Errorf("%d pairs, want %d", n, want)
	}
	return nil
}

// scanError checks that a Scan that is cancelled yields one error and then ends.
func scanError(r *rig) error {
	if err := fill(r.e, "k", 3000); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	n, errs := 0, 0
	for p, err := range r.e.Scan(ctx, engine.Range{}) {
		if err != nil {
			if errs++; !errors.Is(err, context.Canceled) || p.Key != nil {
				return fmt.Errorf("%v with %q", err, p.Key)
			}
			continue
		}
		if errs > 0 {
			return errors.New("a pair after an error")
		}
		if n++; n == 1 {
			cancel()
		}
	}
	if errs != 1 {
		return fmt.Errorf("%d errors after cancelling, %d pairs", errs, n)
	}
	return nil
}

// together calls f(0) to f(n-1) at the same time and returns their errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// readYourWrites checks that a read after an Apply has returned sees what it wrote.
func readYourWrites(r *rig) error {
	return together(8, func(w int) error {
		for i := range 50 {
			key, v := fmt.Sprint("w", w), fmt.Sprint(i)
			if err := put(r.e, key, v); err != nil {
				return err
			}
			if err := expect(r.e, fmt.Sprintf("[%q]", v), key); err != nil {
				return err
			}
			got, err := collect(r.e, engine.Range{Start: k(key), Limit: 1})
			if err != nil || len(got) != 1 || got[0] != key {
				return fmt.Errorf("Scan after Apply = %q, %v", got, err)
			}
		}
		return nil
	})
}

// aliasing checks that the engine keeps no slice that it was passed, and returns no
// slice that it or another caller uses.
func aliasing(r *rig) error {
	key, val := k("key"), k("val")
	var b engine.Batch
	b.Set(key, val)
	if err := r.e.Apply(background, &b); err != nil {
		return err
	}
	copy(key, "XXX")
	copy(val, "XXX")
	if err := expect(r.e, `["val" ""]`, "key", "XXX"); err != nil {
		return fmt.Errorf("the engine retains what it was passed: %w", err)
	}
	vs, err := r.e.Get(background, k("key"), k("key"))
	if err != nil {
		return err
	}
	copy(vs[0], "XXX")
	if string(vs[1]) != "val" {
		return errors.New("two results of Get share memory")
	}
	for p, err := range r.e.Scan(background, engine.Range{}) {
		if err != nil {
			return err
		}
		copy(p.Key, "YYY")
		copy(p.Value, "YYY")
	}
	if err := expect(r.e, `["val"]`, "key"); err != nil {
		return fmt.Errorf("the engine shares what it returns: %w", err)
	}
	return nil
}

// scanGuard scans with guards that hold and guards that don't. Then a writer changes the value of a guard together with
// OnePage others: a page that was read under the guard has the values that go with it.
func scanGuard(r *rig) error {
	if err := errors.Join(fill(r.e, "g", 2500), put(r.e, "guard", "0")); err != nil {
		return err
	}
	all := engine.PrefixRange(k("g0"))
	for _, c := range []struct {
		guard engine.Pair
		holds bool
	}{
		{engine.Pair{Key: k("guard"), Value: k("0")}, true},
		{engine.Pair{Key: k("nothing")}, true},
		{engine.Pair{Key: k("guard"), Value: k("1")}, false},
		{engine.Pair{Key: k("guard")}, false},
		{engine.Pair{Key: k("nothing"), Value: k("0")}, false},
	} {
		all.Guards = []engine.Pair{{Key: k("g00001"), Value: []byte("vv")}, c.guard}
		got, err := collect(r.e, all)
		if c.holds && (err != nil || len(got) != 2500) {
			return fmt.Errorf("Scan under a guard that holds: %d pairs, %v", len(got), err)
		}
		var conflict *engine.ConflictError
		if !c.holds && (len(got) > 0 || !errors.As(err, &conflict) || !bytes.Equal(conflict.Key, c.guard.Key)) {
			return fmt.Errorf("Scan under a guard that does not hold: %d pairs, %v", len(got), err)
		}
	}
	written := make(chan error, 1)
	go func() {
		var err error
		for n := 1; n <= 150 && err == nil; n++ {
			var b engine.Batch
			value := fmt.Appendf(nil, "%d", n)
			b.Set(k("guard"), value)
			for i := range engine.OnePage {
				b.Set(fmt.Appendf(nil, "p%02d", i), value)
			}
			err = r.e.Apply(background, &b)
		}
		written <- err
	}()
	for {
		if err := samePages(r.e); err != nil {
			return errors.Join(err, <-written)
		}
		select {
		case err := <-written:
			return err
		default:
		}
	}
}

// samePages scans under a guard, and fails if a page has another value than the guard.
func samePages(e engine.Engine) error {
	vs, err := e.Get(background, k("guard"))
	if err != nil {
		return err
	}
	of := engine.PrefixRange(k("p"))
	of.Guards = []engine.Pair{{Key: k("guard"), Value: vs[0]}}
	for p, err := range e.Scan(background, of) {
		if errors.Is(err, engine.ErrConflict) {
			return nil
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(p.Value, vs[0]) {
			return fmt.Errorf("Scan under guard %q has %q at %q", vs[0], p.Value, p.Key)
		}
	}
	return nil
}
