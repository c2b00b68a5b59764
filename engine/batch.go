package engine

import (
	"bytes"
	"fmt"
)

// A Batch is a set of guards and writes that Apply executes atomically. It is
// data: it can be built by several packages, measured before any I/O, applied
// again, printed and replayed. The zero Batch is empty and ready to use; one
// without writes only checks its guards.
//
// Guards see the state before the batch. A key occurs at most once among Sets
// and Deletes; a key and a set value are never empty. A Batch keeps the slices
// that it is given: the caller must not change them until the batch is done with.
type Batch struct {
	Guards  []Pair   // the stored value must equal Value; nil means absent
	Sets    []Pair   // stored unconditionally
	Deletes [][]byte // removed; a missing key is no error

	// Reclaim says that b removes data or is a step towards that. A driver that
	// keeps some disk space free refuses other batches when only that is left,
	// and applies those that reclaim as long as the file system takes them.
	Reclaim bool
}

// Guard requires key to hold want when the batch applies; nil means absent.
func (b *Batch) Guard(key, want []byte) { b.Guards = append(b.Guards, Pair{key, want}) }

// Set stores value at key.
func (b *Batch) Set(key, value []byte) { b.Sets = append(b.Sets, Pair{key, value}) }

// Delete removes key.
func (b *Batch) Delete(key []byte) { b.Deletes = append(b.Deletes, key) }

// Ops returns the number of writes in b.
func (b *Batch) Ops() int { return len(b.Sets) + len(b.Deletes) }

// Bytes returns the sum of the lengths of the keys and values of b's writes.
func (b *Batch) Bytes() int {
	n := 0
	for _, p := range b.Sets {
		n += len(p.Key) + len(p.Value)
	}
	for _, k := range b.Deletes {
		n += len(k)
	}
	return n
}

// Check reports whether b keeps the rules of Batch and fits l. Every driver
// calls it before anything else.
func (b *Batch) Check(l Limits) error {
	if size := b.Bytes(); b.Ops() > l.BatchOps || size > l.BatchBytes {
		return fmt.Errorf("%w: %d writes of %d bytes, at most %d of %d", ErrTooLarge, b.Ops(), size, l.BatchOps, l.BatchBytes)
	}
	key := func(k []byte) error {
		if len(k) == 0 {
			return fmt.Errorf("%w: empty key", ErrInvalid)
		}
		if len(k) > l.KeyBytes {
			return fmt.Errorf("%w: key of %d bytes, at most %d", ErrTooLarge, len(k), l.KeyBytes)
		}
		return nil
	}
	for _, g := range b.Guards {
		if err := key(g.Key); err != nil {
			return err
		}
	}
	for _, p := range b.Sets {
		if err := key(p.Key); err != nil {
			return err
		}
		if len(p.Value) == 0 {
			return fmt.Errorf("%w: empty value at key %x", ErrInvalid, p.Key)
		}
		if len(p.Value) > l.ValueBytes {
			return fmt.Errorf("%w: value of %d bytes, at most %d", ErrTooLarge, len(p.Value), l.ValueBytes)
		}
	}
	for _, k := range b.Deletes {
		if err := key(k); err != nil {
			return err
		}
	}
	if k := b.twice(); k != nil {
		return fmt.Errorf("%w: key %x written twice", ErrInvalid, k)
	}
	return nil
}

// twice returns a key that is written twice, or nil. Most batches have a dozen
// writes, for which comparing all pairs is faster than a map.
func (b *Batch) twice() []byte {
	written := func(i int) []byte {
		if i < len(b.Sets) {
			return b.Sets[i].Key
		}
		return b.Deletes[i-len(b.Sets)]
	}
	n := b.Ops()
	if n <= 32 {
		for i := range n {
			for j := range i {
				if bytes.Equal(written(i), written(j)) {
					return written(i)
				}
			}
		}
		return nil
	}
	seen := make(map[string]struct{}, n)
	for i := range n {
		k := written(i)
		if _, dup := seen[string(k)]; dup {
			return k
		}
		seen[string(k)] = struct{}{}
	}
	return nil
}
