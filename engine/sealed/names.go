package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A stored key has hashes in place of the text that the key has: one of partHash bytes for each of the first parts of
// the text that end with "/", and one of wholeHash bytes for the whole text. The text itself is encrypted with the
// value.
const (
	partHash  = 8
	wholeHash = 16
	mostParts = 4 // that have a hash of their own
)

// What a hash under the secret of a keyset is of.
const (
	ofPart  = 'd'
	ofWhole = 'w'
	ofNote  = 'n'
)

// damagedText begins the text of a key whose real text can't be decrypted. The hashes of the stored key follow, in hex.
// It is no UTF-8, so no text of a caller begins with it.
const damagedText = "\xff"

// partEnds returns where the first parts of a text end. Each ends with "/".
func partEnds(text []byte) (ends []int) {
	for i, c := range text {
		if c == 0 { // The text has ended.
			break
		}
		if c == '/' {
			if ends = append(ends, i+1); len(ends) == mostParts {
				break
			}
		}
	}
	return ends
}

// storedKey returns the key under which the pair of a key is stored.
func (s *keyset) storedKey(key []byte) []byte {
	n, text := keys.Text(key)
	if n == 0 {
		return key
	}
	out := append(make([]byte, 0, n+mostParts*partHash+wholeHash+len(key)-n-len(text)), key[:n]...)
	if hashes, ok := strings.CutPrefix(string(text), damagedText); ok {
		if b, err := hex.DecodeString(hashes); err == nil {
			return append(append(out, b...), key[n+len(text):]...)
		}
	}
	out = s.appendParts(out, text, partEnds(text))
	whole := s.names.Sum16(ofWhole, text)
	return append(append(out, whole[:]...), key[n+len(text):]...)
}

// appendParts appends the hashes of the parts of a text that end where ends says.
func (s *keyset) appendParts(out, text []byte, ends []int) []byte {
	for _, end := range ends {
		sum := s.names.Sum16(ofPart, text[:end])
		out = append(out, sum[:partHash]...)
	}
	return out
}

// plainValue returns the bytes that are encrypted for a pair: the value, and before it the text of the key, if the key
// has one, with its length.
func plainValue(p engine.Pair) []byte {
	n, text := keys.Text(p.Key)
	if n == 0 {
		return p.Value
	}
	out := binary.AppendUvarint(make([]byte, 0, 2+len(text)+len(p.Value)), uint64(len(text)))
	return append(append(out, text...), p.Value...)
}

// open returns the pair of a stored key and its stored value. If the value does not verify, the pair has codec.Forged
// instead: whoever reads that says what is damaged.
func (s *keyset) open(storedKey, stored []byte) engine.Pair {
	n, hashes := keys.Text(storedKey)
	plain, err := s.opens.DecryptDeterministically(stored, storedKey)
	if n == 0 {
		if err != nil {
			plain = codec.Forged
		}
		return engine.Pair{Key: storedKey, Value: plain}
	}
	begin, end := slices.Clip(storedKey[:n]), storedKey[n+len(hashes):]
	size, k := binary.Uvarint(plain)
	if err != nil || k <= 0 || size > uint64(len(plain)-k) {
		begin = append(begin, damagedText+hex.EncodeToString(hashes)...)
		return engine.Pair{Key: append(begin, end...), Value: codec.Forged}
	}
	text, value := plain[k:k+int(size)], plain[k+int(size):]
	return engine.Pair{Key: append(append(begin, text...), end...), Value: value}
}

// A scanning reads the pairs of a namespace from a database and decrypts them.
type scanning struct {
	from    engine.Scanner
	set     *keyset
	note    []byte                              // the key of the note, which is left out
	guards  []engine.Pair                       // of each page
	knowing func(value []byte) (*keyset, error) // the keyset that decrypts a stored value
}

// clip returns the part of a range whose keys begin with a prefix.
func clip(r engine.Range, prefix []byte) engine.Range {
	of := engine.PrefixRange(prefix)
	if bytes.Compare(r.Start, of.Start) < 0 {
		r.Start = of.Start
	}
	if of.End != nil && (r.End == nil || bytes.Compare(r.End, of.End) > 0) {
		r.End = of.End
	}
	return r
}

// scan yields the pairs of a range within the namespace, in the order of their keys. Stored keys without hashes are in
// that order already. Those that differ in their hashes alone are read and sorted together: see sorted.
func (s *scanning) scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		left := r.Limit // 0 means no limit
		for start := r.Start; start != nil; {
			of := engine.Range{Start: start, End: r.End, Limit: left}
			textAt := keys.TextAt(start)
			pairs := s.ordered(ctx, of)
			next := []byte(nil) // where the next turn of this loop begins
			if textAt > 0 {
				pairs = s.sorted(ctx, of)
				if end := engine.PrefixEnd(start[:textAt]); r.End == nil || bytes.Compare(end, r.End) < 0 {
					next = end
				}
			}
			for p, err := range pairs {
				if n := keys.TextAt(p.Key); err == nil && n > 0 && textAt == 0 {
					next = p.Key[:n]
					break
				}
				if !yield(p, err) || err != nil {
					return
				}
				if left > 0 {
					if left--; left == 0 {
						return
					}
				}
			}
			start = next
		}
	}
}

// ordered yields the pairs of a range in the order of their stored keys. It does not decrypt those that have hashes.
func (s *scanning) ordered(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		if r.Limit > 0 {
			r.Limit++ // for the note
		}
		r.Guards = s.guards
		if n := keys.TextAt(r.End); n > 0 { // The end has a text, and stored keys have none: read up to the end of all texts.
			r.End = engine.PrefixEnd(r.End[:n])
		}
		for p, err := range s.from.Scan(ctx, r) {
			if err == nil && bytes.Equal(p.Key, s.note) {
				continue
			}
			if err == nil && keys.TextAt(p.Key) == 0 {
				p, err = s.open(p)
			}
			if !yield(p, err) || err != nil {
				return
			}
		}
	}
}

// open decrypts a pair.
func (s *scanning) open(p engine.Pair) (engine.Pair, error) {
	set, err := s.knowing(p.Value)
	if err != nil {
		return p, err
	}
	return set.open(p.Key, p.Value), nil
}

// heldBytes is how many bytes of values sorted keeps while it reads. It reads the others again.
const heldBytes = 1 << 20

// sorted yields the pairs of a range as far as their keys differ in the text alone.
func (s *scanning) sorted(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		type found struct{ key, storedKey, value []byte }
		var all []found
		held := 0
		around := s.set.storedAround(r)
		around.Guards = s.guards
		for p, err := range s.from.Scan(ctx, around) {
			storedKey := p.Key
			if err == nil {
				p, err = s.open(p)
			}
			if err != nil {
				yield(engine.Pair{}, err)
				return
			}
			if bytes.Compare(p.Key, r.Start) < 0 || r.End != nil && bytes.Compare(p.Key, r.End) >= 0 {
				continue
			}
			if held += len(p.Value); held > heldBytes {
				held, p.Value = held-len(p.Value), nil
			}
			all = append(all, found{p.Key, storedKey, p.Value})
		}
		slices.SortStableFunc(all, func(a, b found) int { return bytes.Compare(a.key, b.key) })
		for _, f := range all {
			p := engine.Pair{Key: f.key, Value: f.value}
			if f.value == nil {
				var err error
				if p, err = s.again(ctx, f.storedKey); err != nil {
					yield(engine.Pair{}, err)
					return
				}
				if p.Value == nil {
					continue
				}
				if !bytes.Equal(p.Key, f.key) { // It was damaged meanwhile.
					p = engine.Pair{Key: f.key, Value: codec.Forged}
				}
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

// again reads the pair of a stored key, which may be gone.
func (s *scanning) again(ctx context.Context, storedKey []byte) (engine.Pair, error) {
	for p, err := range s.from.Scan(ctx, engine.Range{Start: storedKey, End: engine.Successor(storedKey), Limit: 1, Guards: s.guards}) {
		if err != nil {
			return p, err
		}
		return s.open(p)
	}
	return engine.Pair{}, nil
}

// storedAround returns the smallest range of stored keys that has all keys of a range whose start has a text. All texts
// of the range begin with some parts, and so the stored keys begin with the hashes of these parts.
func (s *keyset) storedAround(r engine.Range) engine.Range {
	n := keys.TextAt(r.Start)
	text := r.Start[n:]
	ends := partEnds(text)
	for len(ends) > 0 {
		end := engine.PrefixEnd(r.Start[:n+ends[len(ends)-1]])
		if r.End != nil && bytes.Compare(r.End, end) <= 0 {
			break
		}
		ends = ends[:len(ends)-1]
	}
	return engine.PrefixRange(s.appendParts(slices.Clip(r.Start[:n]), text, ends))
}
