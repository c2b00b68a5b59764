// Package keys is the one table of the keys that reach the engine. A key is the 4-byte namespace prefix, a letter, and
// fields of fixed width, but for Record and Listing, which have the caller's text, because they are listed in its
// order. Other text occurs only as a hash under the store's secret, and incarnations are random. So only the keys
// without fields (Store, Copying, Encryption, Cycle, Forgotten, Feed, FeedEnd) can be guessed from outside. See
// docs/format.md.
package keys

import (
	"bytes"
	"encoding/binary"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// The letters, each also the type of the records under it.
const (
	Store       = 'A' // the store record
	About       = 'a' // H(session id): metadata
	Blob        = 'b' // H(blob id), part: bytes in a representation
	Dirty       = 'd' // incarnation: changed since gc last looked
	Attachment  = 'e' // incarnation, H(blob id): the session has this attachment
	Fork        = 'f' // ancestor's incarnation, fork's incarnation
	Cycle       = 'g' // the garbage-collection cycle
	Erased      = 'E' // incarnation, genesis, node id or zero: a session or a node was erased
	Edge        = 'h' // H(blob id), kind of holder, holder: something refers to the blob
	Count       = 'j' // H(blob id): how many edges there are
	Life        = 'l' // incarnation: lifecycle
	Mark        = 'm' // H(blob id)
	Origin      = 'o' // incarnation: ancestors of an attached fork
	Segment     = 'p' // incarnation, last revision, value: commits and their nodes
	Version     = 'P' // incarnation, H(part name), revision, value: a version of a checkpoint part
	Ref         = 'r' // incarnation, H(name): a revision that is kept
	Head        = 's' // H(session id)
	Tombstone   = 't' // incarnation, 8 bytes of the node id
	Entry       = 'u' // list, inverted time, incarnation: a session in a list, latest update first
	Place       = 'v' // incarnation: where its entries are
	Predecessor = 'w' // H(session id): a session of this id was deleted or renamed
	Forgotten   = 'W' // predecessor records were removed
	Upload      = 'x' // upload or incarnation, H(blob id): a pin, which keeps the blobs of an upload
	Index       = 'y' // incarnation, last revision, page: where nodes, event keys and turn ids are
	Bookmark    = 'z' // incarnation: how far gc has read it
	Candidate   = 'G' // H(blob id): may be garbage
	Detached    = 'D' // incarnation, H(blob id): vacuum removed a reference
	Stale       = 'V' // incarnation: a collection has found work for vacuum
	Encryption  = 'k' // which keys an encrypted store is encrypted with
	Loose       = 'K' // H(blob id): vacuum may compress it further
	Copying     = 'C' // the last copy into the store
	Scrub       = 'S' // how far the scrubbing has come
	Maintenance = 'N' // how maintenance went the last time
	Touched     = 'M' // random: which keys a batch has changed while the namespace is moved
	Record      = 'R' // incarnation, text: a record of the session
	Listing     = 'n' // text, 0, incarnation: the session has a record of that key
	Feed        = 'F' // whether changes are told
	FeedEnd     = 'Q' // which changes are in the feed
	Pending     = 'c' // time, incarnation, kind, 8 bytes: a change that is not in the feed yet
	Change      = 'q' // feed, number: a change of the feed
)

// An Incarnation is the identity of a session from its creation to its
// deletion: 16 random bytes, never reused.
type Incarnation [16]byte

// A Hash is the keyed 16-byte hash that stands for an identifier in keys.
type Hash [16]byte

// A List stands for a list of sessions in keys. The zero List is the list of all sessions.
type List [16]byte

// Ahead returns the list of those sessions of l that are ahead of their entries: see head.Entry.
func (l List) Ahead() List {
	l[15] ^= 1
	return l
}

const prefixSize = 4

// MaxText bounds the text in the keys of Record and Listing. It has no zero byte.
const MaxText = 512

// widths are the lengths of the fields after each letter, without text.
var widths = map[byte]int{
	Store: 0, Copying: 0, Scrub: 0, Maintenance: 0, Encryption: 0, Touched: 16, Forgotten: 0, About: 16, Blob: 17, Dirty: 16, Attachment: 32, Fork: 32, Predecessor: 16, Life: 16,
	Mark: 16, Origin: 16, Segment: 25, Version: 41, Head: 16, Tombstone: 24, Entry: 40, Place: 16,
	Cycle: 0, Edge: 33, Count: 16, Ref: 32, Upload: 32, Index: 25, Bookmark: 16, Candidate: 16, Detached: 32, Stale: 16, Loose: 16,
	Erased: 80, Record: 16, Listing: 17, Feed: 0, FeedEnd: 0, Pending: 33, Change: 16,
}

// A Space makes the keys of one namespace.
type Space struct {
	prefix [prefixSize]byte
	keyed  codec.Keyed
}

// StoreKey returns the key of the store record of the namespace called name.
// It needs no secret: the record holds the one for all other keys.
func StoreKey(name string) []byte {
	p := prefix(name)
	return append(p[:], Store)
}

// CopyingKey returns the key of the note of the last copy into the namespace called
// name. While one is made, it stands in place of the store record.
func CopyingKey(name string) []byte {
	p := prefix(name)
	return append(p[:], Copying)
}

// ScrubKey returns what Space.Scrub returns, for the namespace called name.
func ScrubKey(name string) []byte {
	p := prefix(name)
	return append(p[:], Scrub)
}

// TouchedKey returns the key of the note of a batch that was applied while the namespace called name was being moved.
func TouchedKey(name string, id [16]byte) []byte {
	p := prefix(name)
	return append(append(p[:], Touched), id[:]...)
}

// TouchedRange returns the range of these keys.
func TouchedRange(name string) engine.Range {
	p := prefix(name)
	return engine.PrefixRange(append(p[:], Touched))
}

// EncryptionKey returns the key of the note by which an encrypted store is known. Package sealed alone reads it: the
// key is not among those that its engine has.
func EncryptionKey(name string) []byte {
	p := prefix(name)
	return append(p[:], Encryption)
}

// CycleKey returns what Space.Cycle returns, for the namespace called name.
func CycleKey(name string) []byte {
	p := prefix(name)
	return append(p[:], Cycle)
}

// Prefix returns what all keys of the namespace called name begin with.
func Prefix(name string) []byte {
	p := prefix(name)
	return p[:]
}

func prefix(name string) (p [prefixSize]byte) {
	sum := codec.SpaceHash.Sum([]byte(name))
	copy(p[:], sum[:])
	return p
}

// New returns the keys of the namespace called name, whose store record holds secret.
func New(name string, secret [codec.HashSize]byte) *Space {
	return &Space{prefix: prefix(name), keyed: codec.NewKeyed(secret)}
}

// Session returns the hash of a session id.
func (s *Space) Session(id string) Hash { return s.keyed.Sum16('s', []byte(id)) }

// BlobHash returns the hash of a blob id.
func (s *Space) BlobHash(id [codec.HashSize]byte) Hash { return s.keyed.Sum16('b', id[:]) }

func (s *Space) key(letter byte, extra int, fields ...[]byte) []byte {
	n := prefixSize + 1 + extra
	for _, f := range fields {
		n += len(f)
	}
	k := append(append(make([]byte, 0, n), s.prefix[:]...), letter)
	for _, f := range fields {
		k = append(k, f...)
	}
	return k
}

// All returns the range of all keys under letter.
func (s *Space) All(letter byte) engine.Range { return engine.PrefixRange(s.key(letter, 0)) }

// Of returns the range of the keys under letter that begin with field.
func (s *Space) Of(letter byte, field [16]byte) engine.Range {
	return engine.PrefixRange(s.key(letter, 0, field[:]))
}

// Everything returns the range of all keys of the namespace.
func (s *Space) Everything() engine.Range { return engine.PrefixRange(s.prefix[:]) }

// Fields returns the letter of a key of s and what follows it, or false when it
// is no key of the table.
func (s *Space) Fields(key []byte) (letter byte, fields []byte, ok bool) {
	if len(key) <= prefixSize {
		return 0, nil, false
	}
	letter, fields = key[prefixSize], key[prefixSize+1:]
	width, ok := widths[letter]
	if text := len(fields) - width; letter == Record || letter == Listing {
		ok = text > 0 && text <= MaxText
		if ok && letter == Record {
			ok = bytes.IndexByte(fields[width:], 0) < 0
		} else if ok {
			ok = bytes.IndexByte(fields, 0) == text
		}
		return letter, fields, ok
	}
	return letter, fields, ok && len(fields) == width
}

// TextAt returns where the caller's text begins in keys that begin as key does, or 0 if they have none or key ends
// before that.
func TextAt(key []byte) int {
	if len(key) <= prefixSize {
		return 0
	}
	n := prefixSize + 1
	switch key[prefixSize] {
	case Record:
		n += len(Incarnation{})
	case Listing:
	default:
		return 0
	}
	if len(key) < n {
		return 0
	}
	return n
}

// Text returns the caller's text in a key of Record or Listing, and where it begins, or 0 for another key.
func Text(key []byte) (at int, text []byte) {
	at = TextAt(key)
	if text = key[at:]; at > 0 && key[prefixSize] == Listing {
		text = text[:max(len(text)-1-len(Incarnation{}), 0)]
	}
	return at, text
}

// Letter returns the letter of a key of s.
func (s *Space) Letter(key []byte) byte {
	letter, _, _ := s.Fields(key)
	return letter
}

// Head returns the key of a session's head.
func (s *Space) Head(id Hash) []byte { return s.key(Head, 0, id[:]) }

// Predecessor returns the key that says that a session of this id is gone.
func (s *Space) Predecessor(id Hash) []byte { return s.key(Predecessor, 0, id[:]) }

// Erased returns the key of the record that a session was erased, or, if node is not zero, a node of it.
func (s *Space) Erased(inc Incarnation, genesis, node [codec.HashSize]byte) []byte {
	return s.key(Erased, 0, inc[:], genesis[:], node[:])
}

// ErasedFields takes apart the fields of such a key.
func ErasedFields(fields []byte) (inc Incarnation, genesis, node [codec.HashSize]byte) {
	return Incarnation(fields), [codec.HashSize]byte(fields[16:]), [codec.HashSize]byte(fields[16+codec.HashSize:])
}

// Forgotten returns the key of the record that is written when predecessor records are removed.
func (s *Space) Forgotten() []byte { return s.key(Forgotten, 0) }

// About returns the key of a session's metadata.
func (s *Space) About(id Hash) []byte { return s.key(About, 0, id[:]) }

// Life returns the key of a lifecycle record.
func (s *Space) Life(inc Incarnation) []byte { return s.key(Life, 0, inc[:]) }

// Origin returns the key of a fork's ancestors.
func (s *Space) Origin(inc Incarnation) []byte { return s.key(Origin, 0, inc[:]) }

// Fork returns the key that says that fork holds history of ancestor.
func (s *Space) Fork(ancestor, fork Incarnation) []byte {
	return s.key(Fork, 0, ancestor[:], fork[:])
}

// Segment returns the key of a value of the segment that ends with revision last.
func (s *Space) Segment(inc Incarnation, last uint64, value int) []byte {
	return append(binary.BigEndian.AppendUint64(s.key(Segment, 9, inc[:]), last), byte(value))
}

// PartHash returns the hash of a checkpoint part's name.
func (s *Space) PartHash(name string) Hash { return s.keyed.Sum16('p', []byte(name)) }

// Version returns the key of a value of the version of a checkpoint part that a
// revision set, where the session itself stores that version.
func (s *Space) Version(inc Incarnation, part Hash, revision uint64, value int) []byte {
	return append(binary.BigEndian.AppendUint64(s.key(Version, 9, inc[:], part[:]), revision), byte(value))
}

// Tombstone returns the key of a node's tombstone.
func (s *Space) Tombstone(inc Incarnation, id [codec.HashSize]byte) []byte {
	return s.key(Tombstone, 0, inc[:], id[:8])
}

// EventKey returns the hash of a caller's key.
func (s *Space) EventKey(key string) Hash { return s.keyed.Sum16('k', []byte(key)) }

// Turn returns the hash of a turn id.
func (s *Space) Turn(turn string) Hash { return s.keyed.Sum16('i', []byte(turn)) }

// Attachment returns the key that says that a session has an attachment.
func (s *Space) Attachment(inc Incarnation, blob Hash) []byte {
	return s.key(Attachment, 0, inc[:], blob[:])
}

// Blob returns the key of a part of a blob's representation.
func (s *Space) Blob(blob Hash, part int) []byte {
	return append(s.key(Blob, 1, blob[:]), byte(part))
}

// Mark returns the key of a blob's mark.
func (s *Space) Mark(blob Hash) []byte { return s.key(Mark, 0, blob[:]) }

// Dirty returns the key that says that a session changed since gc last looked.
func (s *Space) Dirty(inc Incarnation) []byte { return s.key(Dirty, 0, inc[:]) }

// Children returns the list of the children of a session.
func Children(parent Incarnation) List { return List(parent) }

// Grouped returns the list of the sessions of a group and of the groups below it.
func (s *Space) Grouped(path string) List { return s.keyed.Sum16('g', []byte(path)) }

// Labelled returns the list of the sessions that have a label of that name and value.
func (s *Space) Labelled(name, value string) List {
	text := binary.AppendUvarint(make([]byte, 0, 2+len(name)+len(value)), uint64(len(name)))
	return s.keyed.Sum16('l', append(append(text, name...), value...))
}

// Entry returns the key of a session's entry in a list.
func (s *Space) Entry(list List, time uint64, inc Incarnation) []byte {
	k := binary.BigEndian.AppendUint64(s.key(Entry, 24, list[:]), ^time)
	return append(k, inc[:]...)
}

// EntryFields returns the list, the time and the session that a key made by Entry has, from its fields.
func EntryFields(fields []byte) (list List, time uint64, inc Incarnation) {
	return List(fields), ^binary.BigEndian.Uint64(fields[16:]), Incarnation(fields[24:])
}

// Place returns the key of the record that says where a session's entries are.
func (s *Space) Place(inc Incarnation) []byte { return s.key(Place, 0, inc[:]) }

// Ref returns the key of a revision of inc that is kept under a name.
func (s *Space) Ref(inc Incarnation, name string) []byte {
	h := s.keyed.Sum16('r', []byte(name))
	return s.key(Ref, 0, inc[:], h[:])
}

// Index returns the key of a page of the run of an index that ends with revision last.
func (s *Space) Index(inc Incarnation, last uint64, page int) []byte {
	return append(binary.BigEndian.AppendUint64(s.key(Index, 9, inc[:]), last), byte(page))
}

// Upload returns the key of the pin by which owner keeps a blob. The owner is an upload or,
// for the grant of a finished upload, a session. The zero blob stands for the upload itself.
func (s *Space) Upload(owner [16]byte, blob Hash) []byte { return s.key(Upload, 0, owner[:], blob[:]) }

// SegmentFields decodes the fields of a key of Segment: the last revision of the segment, and the number of the value
// in it.
func SegmentFields(fields []byte) (last uint64, value int) {
	return binary.BigEndian.Uint64(fields[16:]), int(fields[24])
}

// Store returns what StoreKey returns for the namespace of s.
func (s *Space) Store() []byte { return s.key(Store, 0) }

// Cycle returns the key of the record of the garbage-collection cycle.
func (s *Space) Cycle() []byte { return s.key(Cycle, 0) }

// Scrub returns the key that says how far the scrubbing of the namespace has come.
func (s *Space) Scrub() []byte { return s.key(Scrub, 0) }

// Maintenance returns the key that says how maintenance of the namespace went the last time.
func (s *Space) Maintenance() []byte { return s.key(Maintenance, 0) }

// Edge returns the key that says that a holder of some kind refers to blob.
func (s *Space) Edge(blob Hash, kind byte, holder [16]byte) []byte {
	return s.key(Edge, 0, blob[:], []byte{kind}, holder[:])
}

// Count returns the key of the number of edges to blob.
func (s *Space) Count(blob Hash) []byte { return s.key(Count, 0, blob[:]) }

// Bookmark returns the key that says how far gc has read a session.
func (s *Space) Bookmark(inc Incarnation) []byte { return s.key(Bookmark, 0, inc[:]) }

// Candidate returns the key that lists blob for the next sweep.
func (s *Space) Candidate(blob Hash) []byte { return s.key(Candidate, 0, blob[:]) }

// Detached returns the key that says that vacuum removed a reference of inc to blob.
func (s *Space) Detached(inc Incarnation, blob Hash) []byte {
	return s.key(Detached, 0, inc[:], blob[:])
}

// Stale returns the key that says that a collection has found work for vacuum in a session.
func (s *Space) Stale(inc Incarnation) []byte { return s.key(Stale, 0, inc[:]) }

// Record returns the key of a session's record.
func (s *Space) Record(inc Incarnation, text string) []byte {
	return s.key(Record, 0, inc[:], []byte(text))
}

// Records returns the range of the session's records whose keys begin with a text.
func (s *Space) Records(inc Incarnation, prefix string) engine.Range {
	return engine.PrefixRange(s.Record(inc, prefix))
}

// RecordFields decodes the fields of a key of Record.
func RecordFields(fields []byte) (inc Incarnation, text string) {
	return Incarnation(fields), string(fields[16:])
}

// Listing returns the key that says that a session has a record.
func (s *Space) Listing(text string, inc Incarnation) []byte {
	return s.key(Listing, 0, []byte(text), []byte{0}, inc[:])
}

// Listings returns the range of all sessions' records whose keys begin with a text, in the order of
// these keys.
func (s *Space) Listings(prefix string) engine.Range {
	return engine.PrefixRange(s.key(Listing, 0, []byte(prefix)))
}

// ListingFields decodes the fields of a key of Listing.
func ListingFields(fields []byte) (text string, inc Incarnation) {
	end := len(fields) - 17
	return string(fields[:end]), Incarnation(fields[end+1:])
}

// Feed returns the key of the record that says whether the feed is on.
func (s *Space) Feed() []byte { return s.key(Feed, 0) }

// FeedEnd returns the key of the record that says which changes are in the feed.
func (s *Space) FeedEnd() []byte { return s.key(FeedEnd, 0) }

// Pending returns the key of a change that is not in the feed yet.
func (s *Space) Pending(time uint64, inc Incarnation, kind byte, salt uint64) []byte {
	k := append(binary.BigEndian.AppendUint64(s.key(Pending, 33), time), inc[:]...)
	return binary.BigEndian.AppendUint64(append(k, kind), salt)
}

// PendingFields decodes the fields of a key of Pending.
func PendingFields(fields []byte) (time uint64, inc Incarnation) {
	return binary.BigEndian.Uint64(fields), Incarnation(fields[8:])
}

// Change returns the key of a change of a feed, of whose identity the key has 8 bytes.
func (s *Space) Change(feed [16]byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(s.key(Change, 8, feed[:8]), number)
}

// Changes returns the range of the changes of a feed.
func (s *Space) Changes(feed [16]byte) engine.Range {
	return engine.PrefixRange(s.key(Change, 0, feed[:8]))
}

// ChangeFields decodes the fields of a key of Change.
func ChangeFields(fields []byte) (number uint64) { return binary.BigEndian.Uint64(fields[8:]) }

// Loose returns the key that lists blob for vacuum to compress it further.
func (s *Space) Loose(blob Hash) []byte { return s.key(Loose, 0, blob[:]) }
