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

// In place of the text of a key stand a hash of 8 bytes for each of its first parts that end with "/", and one of 16
// bytes for the whole text. The text itself is encrypted with the value.
const (
	partHash  = 8
	wholeHash = 16
	mostParts = 4 // that have a hash of their own
)

// The hashes of parts, of texts and of notes have nothing to do with each other.
const (
	ofPart  = 'd'
	ofWhole = 'w'
	ofNote  = 'n'
)

// damagedText begins the text of a key whose text can't be decrypted. What follows is what stands in its place, in
// hex. It is no UTF-8, so no caller's text is like that.
const damagedText = "\xff"

// parts returns the lengths of the first parts of a text that end with "/".
func parts(text []byte) (ends []int) {
	for i, c := range text {
		if c == 0 { // behind the text of a key
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

// hide returns the key under which a pair is stored.
func (s *keyset) hide(key []byte) []byte {
	n, text := keys.Text(key)
	if n == 0 {
		return key
	}
	out := append(make([]byte, 0, n+mostParts*partHash+wholeHash+len(key)-n-len(text)), key[:n]...)
	if raw, ok := strings.CutPrefix(string(text), damagedText); ok {
		stood, err := hex.DecodeString(raw)
		if err == nil {
			return append(append(out, stood...), key[n+len(text):]...)
		}
	}
	out = s.hideParts(out, text, parts(text))
	whole := s.names.Sum16(ofWhole, text)
	return append(append(out, whole[:]...), key[n+len(text):]...)
}

// hideParts appends the hashes of the parts of a text with these ends.
func (s *keyset) hideParts(out, text []byte, ends []int) []byte {
	for _, end := range ends {
		sum := s.names.Sum16(ofPart, text[:end])
		out = append(out, sum[:partHash]...)
	}
	return out
}

// plain returns what is encrypted for a value: if the key has a text, its length, the text and the value.
func plain(key, value []byte) []byte {
	n, text := keys.Text(key)
	if n == 0 {
		return value
	}
	out := binary.AppendUvarint(make([]byte, 0, 2+len(text)+len(value)), uint64(len(text)))
	return append(append(out, text...), value...)
}

// open returns the pair that is stored as value under hidden. If value does not verify, it returns codec.Forged as the
// value: whoever reads that says what is damaged.
func (s *keyset) open(hidden, value []byte) engine.Pair {
	n, rest := keys.Text(hidden)
	b, err := s.primitive.DecryptDeterministically(value, hidden)
	if err == nil && n == 0 {
		return engine.Pair{Key: hidden, Value: b}
	}
	if n == 0 {
		return engine.Pair{Key: hidden, Value: codec.Forged}
	}
	tail := hidden[n+len(rest):]
	size, k := binary.Uvarint(b)
	if err != nil || k <= 0 || size > uint64(len(b)-k) {
		key := append(slices.Clip(hidden[:n]), damagedText+hex.EncodeToString(rest)...)
		return engine.Pair{Key: append(key, tail...), Value: codec.Forged}
	}
	key := append(append(slices.Clip(hidden[:n]), b[k:k+int(size)]...), tail...)
	return engine.Pair{Key: key, Value: b[k+int(size):]}
}

// Scanner returns what decrypts the store of a namespace in a damaged database, of which nothing but Scan is asked:
// see package recovery. Where one record of a session can't be read, none of its records may come.
func Scanner(ctx context.Context, from engine.Scanner, ring *Keyring, namespace string) (engine.Scanner, error) {
	set, err := ring.keyset(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &remains{scanning{from, func([]byte) (*keyset, error) { return set, nil }, keys.EncryptionKey(namespace)}, keys.Prefix(namespace)}, nil
}

type remains struct {
	scanning
	prefix []byte
}

// Scan implements engine.Scanner.
func (r *remains) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return r.scan(ctx, clip(of, r.prefix))
}

// A scanning decrypts what it scans.
type scanning struct {
	from  engine.Scanner
	known func(value []byte) (*keyset, error) // the keyset for a value
	note  []byte                              // the key of the note
}

// scan yields the pairs of a range that is of the namespace, in the order of their keys.
func (s *scanning) scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		left := r.Limit // 0: no limit
		for start := r.Start; start != nil; {
			of := engine.Range{Start: start, End: r.End, Limit: left}
			pairs := s.fixed(ctx, of)
			if start = nil; keys.TextAt(of.Start) > 0 {
				pairs = s.texts(ctx, of)
				if end := engine.PrefixEnd(of.Start[:keys.TextAt(of.Start)]); r.End == nil || bytes.Compare(end, r.End) < 0 {
					start = end
				}
			}
			for p, err := range pairs {
				if err == nil && keys.TextAt(p.Key) > 0 && keys.TextAt(of.Start) == 0 { // Here begin keys with a text.
					start = p.Key[:keys.TextAt(p.Key)]
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
		}
	}
}

// fixed yields the pairs of a range. Those that have a text are as they are stored.
func (s *scanning) fixed(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		if r.Limit > 0 {
			r.Limit++ // for the note
		}
		if n := keys.TextAt(r.End); n > 0 { // What is stored is not in the order of texts.
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
	set, err := s.known(p.Value)
	if err != nil {
		return p, err
	}
	return set.open(p.Key, p.Value), nil
}

// heldBytes is how many bytes of values are kept of what is read before it is sorted. Others are read again.
const heldBytes = 1 << 20

// texts yields the pairs of a range that begins within keys that differ in their text, as far as these go.
func (s *scanning) texts(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		set, err := s.known(nil)
		if err != nil {
			yield(engine.Pair{}, err)
			return
		}
		type found struct{ key, hidden, value []byte }
		var all []found
		held := 0
		for p, err := range s.from.Scan(ctx, set.around(r)) {
			hidden := p.Key
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
			all = append(all, found{p.Key, hidden, p.Value})
		}
		slices.SortStableFunc(all, func(a, b found) int { return bytes.Compare(a.key, b.key) })
		for _, f := range all {
			p := engine.Pair{Key: f.key, Value: f.value}
			if f.value == nil {
				var err error
				if p, err = s.again(ctx, f.hidden); err != nil {
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

// again returns the pair of a stored key, if it is still there.
func (s *scanning) again(ctx context.Context, hidden []byte) (engine.Pair, error) {
	for p, err := range s.from.Scan(ctx, engine.Range{Start: hidden, End: engine.Successor(hidden), Limit: 1}) {
		if err != nil {
			return p, err
		}
		return s.open(p)
	}
	return engine.Pair{}, nil
}

// around returns the range of the stored keys whose texts begin with those parts that all texts of a range begin with.
func (s *keyset) around(r engine.Range) engine.Range {
	n := keys.TextAt(r.Start)
	text := r.Start[n:]
	ends := parts(text)
	for len(ends) > 0 {
		end := engine.PrefixEnd(r.Start[:n+ends[len(ends)-1]])
		if r.End != nil && bytes.Compare(r.End, end) <= 0 {
			break
		}
		ends = ends[:len(ends)-1]
	}
	return engine.PrefixRange(s.hideParts(slices.Clip(r.Start[:n]), text, ends))
}
