// Package engine is Turnstone's storage boundary: an ordered map from bytes to
// bytes that applies conditional batches atomically and durably.
//
// Everything above the boundary is data (keys, values, batches); everything
// below it is one database. A driver implements [Engine] and proves it with
// package enginetest; nothing else of Turnstone asks which driver it runs on.
//
// # Consistency
//
// Get, Scan pages and Apply are strictly serializable together: there is one order of all of them that explains every
// result and agrees with real time. In particular, if a read saw the effects of Apply B and not those of Apply A,
// then A is ordered after B (Fekete, O'Neil and O'Neil, "A Read-Only Transaction Anomaly Under Snapshot Isolation",
// 2004).
//
// # Outcomes
//
// Apply returns nil when the batch is durable; [ErrConflict], [ErrTooLarge],
// [ErrInvalid], [ErrNoSpace], [ErrReadOnly], [ErrUnavailable], [ErrClosed] and the context's error when it had
// no effect; and
// [ErrUnknown] when the driver cannot tell. After ErrUnknown the caller applies
// the same batch again until it succeeds or fails with ErrConflict, and then
// reads what stands there. An attempt that returned ErrUnknown may still take
// effect later. So such a batch should guard at least one value that it changes and
// that never recurs: otherwise it may take effect twice, and over what others have done since.
//
// # Ownership
//
// A driver retains nothing that it is passed and shares nothing that it
// returns. All methods are safe for concurrent use.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
)

// Engine is one ordered key-value store.
type Engine interface {
	// Get reads keys from one snapshot and returns their values in the order
	// of the keys; nil means absent. A key may occur more than once.
	Get(ctx context.Context, keys ...[]byte) ([][]byte, error)

	// Scan yields the pairs of r in ascending byte order of their keys. It
	// reads in pages; each page is one snapshot, later pages may be newer. The first
	// OnePage pairs, if they take no more than 256 KiB, are one page; a driver's pages
	// are larger by what package sealed adds, which is 16 KiB at most. An
	// error ends the sequence and is its last element.
	Scan(ctx context.Context, r Range) iter.Seq2[Pair, error]

	// Apply executes b: all of it, or none of it when a guard is false. On
	// return without error it is durable as far as the driver's documented
	// durability goes. A context that ends before the batch was handed to the
	// database leaves no effect; after that the outcome is reported as it is.
	Apply(ctx context.Context, b *Batch) error

	// Vacuum gives the space of removed pairs back and leaves no removed value
	// behind in the driver's files. Other calls go on meanwhile. Where the files
	// are a server's, or Badger's, it does what that database offers, and the
	// driver's documentation says what can be left in them.
	Vacuum(ctx context.Context) error

	// Limits returns what one Apply accepts. It is constant.
	Limits() Limits

	// Close releases the engine; later calls fail with ErrClosed. Closing
	// twice is harmless.
	Close() error
}

// A Notifier is an Engine that can tell other processes that have its database open of what has happened, so that
// they need not wait until they look again. It is for speed alone: notifications may be lost, and nothing may depend
// on them.
type Notifier interface {
	Engine
	// Notify tells those who listen of a topic, soon and without waiting. Several calls for one topic may become one.
	// A topic is text of at most 200 bytes; the empty one stands for all.
	Notify(topic string)
	// Listen calls heard for topics that were told of, by any process, until ctx ends or the database can't tell; the
	// error is that of ctx, or says why. It calls heard with the empty topic whenever something may have been missed,
	// and so when it begins.
	Listen(ctx context.Context, heard func(topic string)) error
}

type maintenance struct{}

// ForMaintenance returns a context for calls that can wait: of collections, vacuums, verifications and what runs in
// the background. A driver may serve them apart from others, so that neither holds the others up.
func ForMaintenance(ctx context.Context) context.Context {
	return context.WithValue(ctx, maintenance{}, true)
}

// IsMaintenance reports whether a context comes from ForMaintenance.
func IsMaintenance(ctx context.Context) bool { return ctx.Value(maintenance{}) != nil }

// OnePage is how many pairs a Scan yields at least from its first snapshot: see Engine.
const OnePage = 64

// Errors of an engine. Match with [errors.Is]; a driver may wrap them.
var (
	// ErrConflict: a guard was false. Never spurious.
	ErrConflict = errors.New("engine: guard failed")
	// ErrTooLarge: the batch exceeds Limits; nothing was applied.
	ErrTooLarge = errors.New("engine: batch too large")
	// ErrInvalid: the batch breaks a rule of Batch, or what an engine is to be opened with can't be used; nothing was
	// done.
	ErrInvalid = errors.New("engine: invalid")
	// ErrNoSpace: disk, inodes or file descriptors are short; nothing was applied.
	ErrNoSpace = errors.New("engine: no space")
	// ErrUnavailable: the database can't be reached now, or too many others are in
	// the way; nothing was applied.
	ErrUnavailable = errors.New("engine: database unavailable")
	// ErrUnknown: the batch may or may not have been applied.
	ErrUnknown = errors.New("engine: outcome unknown")
	// ErrClosed: the engine is closed, or refuses to go on after a failure
	// that left an outcome unknown; open it again.
	ErrClosed = errors.New("engine: closed")
	// ErrLocked: another engine, in this or another process, has it open.
	ErrLocked = errors.New("engine: in use")
	// ErrCorrupt: the database noticed that its files are damaged.
	ErrCorrupt = errors.New("engine: files damaged")
	// ErrReadOnly: the engine was opened for reading only; nothing was applied.
	ErrReadOnly = errors.New("engine: opened for reading only")
	// ErrMoved: the store was moved to another engine.
	ErrMoved = errors.New("engine: store was moved")
	// ErrReplaced: the directory of the engine is not at its path any more.
	ErrReplaced = errors.New("engine: directory was moved, removed or replaced")
	// ErrEncrypted: what is stored is encrypted, and there is no key for it. See package sealed.
	ErrEncrypted = errors.New("engine: encrypted")
	// ErrNewer: a newer version of the driver or its database wrote the files or tables.
	// They are whole.
	ErrNewer = errors.New("engine: written by a newer version")
)

// A ConflictError names the first guard that did not hold. It matches [ErrConflict].
type ConflictError struct{ Key []byte }

func (e *ConflictError) Error() string { return fmt.Sprintf("engine: guard failed on key %x", e.Key) }

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// A LockedError says who has the store open. It matches [ErrLocked].
type LockedError struct {
	Path   string // the directory
	Holder string // what the holder wrote about itself, for example "pid 4711 (turnstone) on host a since …"
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("engine: %s is in use by %s", e.Path, e.Holder)
}

// Is reports whether target is ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// A ReplacedError says that the directory of an engine is not at its path any more: it was moved, removed or replaced
// by another one while the engine was open. What was acknowledged is in that directory, wherever it is. The engine
// refuses everything from then on; with an error that matches ErrUnknown as well, one batch may be in the directory,
// too. It matches [ErrReplaced] and [ErrClosed].
type ReplacedError struct {
	Path string
	Err  error // why the path can't be looked at, or nil if another directory is there
}

func (e *ReplacedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("engine: the store's directory is not at %s any more: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("engine: %s is another directory than the one that was opened", e.Path)
}

// Is reports whether target is ErrReplaced or ErrClosed.
func (e *ReplacedError) Is(target error) bool { return target == ErrReplaced || target == ErrClosed }

// Unwrap returns why the path can't be looked at.
func (e *ReplacedError) Unwrap() error { return e.Err }

// A MovedError says where a store was moved to. It matches [ErrMoved].
type MovedError struct {
	Path string // the directory that it was in, or its namespace in this database
	To   string // the URL of the engine that it is on, without secrets, or the name of the database
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("engine: the store in %s was moved to %q", e.Path, e.To)
}

// Is reports whether target is ErrMoved.
func (e *MovedError) Is(target error) bool { return target == ErrMoved }

// UnfinishedKey is the key of a pair that marks an engine to which a store is being moved. As long as the pair is
// there, no store can be opened on that engine. Every other key is longer.
var UnfinishedKey = []byte{0}

// A Pair is a key and its value.
type Pair struct{ Key, Value []byte }

// A Range selects the keys k with Start <= k < End. A nil End means no upper
// bound. Limit bounds the number of pairs; 0 means no bound. Guards are those of each page, as in a Batch: where one does
// not hold in the snapshot of a page, a *ConflictError ends the sequence.
type Range struct {
	Start, End []byte
	Limit      int
	Guards     []Pair
}

// Past makes r the range of what is left once the pair at key was yielded, and reports whether nothing is.
func (r *Range) Past(key []byte) (done bool) {
	r.Start = Successor(key)
	if r.Limit > 0 {
		r.Limit--
		return r.Limit == 0
	}
	return false
}

// Check returns a *ConflictError if a guard of r does not hold with the value that get returns for its key.
func (r Range) Check(get func(key []byte) ([]byte, error)) error {
	for _, g := range r.Guards {
		v, err := get(g.Key)
		if err != nil {
			return err
		}
		if !g.Holds(v) {
			return &ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	return nil
}

// Holds reports whether p, as a guard, holds where its key has a value, or none if that is nil.
func (p Pair) Holds(value []byte) bool {
	return bytes.Equal(p.Value, value) && (p.Value == nil) == (value == nil)
}

// Limits bounds one Apply. Every engine accepts at least MinLimits, and every driver DriverLimits.
type Limits struct {
	KeyBytes   int // length of a key
	ValueBytes int // length of a value
	BatchBytes int // sum of the lengths of all keys and values of a batch's writes
	BatchOps   int // number of writes of a batch
}

// MinLimits is what a store needs: its largest batch, and the note that it gets while its namespace is moved.
var MinLimits = Limits{KeyBytes: 1024, ValueBytes: 512 << 10, BatchBytes: 2<<20 + 64<<10, BatchOps: 10_001}

// DriverLimits is what a driver accepts at least: MinLimits, and what package sealed adds when it encrypts.
var DriverLimits = Limits{KeyBytes: 1024, ValueBytes: 514 << 10, BatchBytes: 2816 << 10, BatchOps: 10_002}

// PrefixRange returns the range of all keys that begin with p.
func PrefixRange(p []byte) Range { return Range{Start: p, End: PrefixEnd(p)} }

// PrefixEnd returns the smallest key above every key that begins with p, or nil
// when there is none.
func PrefixEnd(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] != 0xff {
			end := append([]byte(nil), p[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

// Successor returns the smallest key above k: where a scan resumes after k. (The
// next prefix would skip the keys that extend k.)
func Successor(k []byte) []byte {
	return append(append(make([]byte, 0, len(k)+1), k...), 0)
}

// A Size says how much space records take.
type Size struct {
	Records uint64 `json:"records"` // number of records
	Keys    uint64 `json:"keys"`    // bytes of their keys
	Values  uint64 `json:"values"`  // bytes of their values
}

// Total returns the bytes of keys and values.
func (s Size) Total() uint64 { return s.Keys + s.Values }
