package shared

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
)

// The protocol. The owner greets each connection with a text. Then the client sends a request, the owner answers it,
// and so on. Each message is a frame: four bytes with the length, and that many bytes. The first of them is the
// operation of a request or the status of a reply. Numbers are varints. A byte string follows its length plus one;
// zero stands for nil.
const (
	opGet    = 'g' // keys; the reply has their values
	opScan   = 's' // start, end, limit, guards; the reply says whether there is more, and has pairs
	opApply  = 'a' // whether the batch reclaims, guards, sets, deletes
	opVacuum = 'v'
	opMove   = 'm' // the URL of the engine, and its name without secrets; the reply has the numbers of a Moved

	statusOK    = 'k'
	statusError = 'e' // which of the errors in wireErrors it is, as bits; the key of a ConflictError; the text
	statusBye   = 'b' // the owner closes; it has not begun, and won't begin, the request
)

const (
	greeting = "turnstone-shared %d %s %s %d %d %d %d" // protocolVersion, Driver.Name, the directory's identity, the fields of engine.Limits
	// protocolVersion changes with the messages. Processes of different versions refuse each other.
	protocolVersion = 3
	// What a frame may have. A request has one batch, or the keys of one read; a reply may have the values of these keys.
	maxRequest = 64 << 20
	maxFrame   = 1 << 30
)

// errProtocol means that what came is no message of the protocol.
var errProtocol = errors.New("shared: malformed message")

// newFrame begins a frame, whose length endFrame sets.
func newFrame(first byte) []byte { return append(make([]byte, 4, 512), first) }

func endFrame(frame []byte, max int) ([]byte, error) {
	n := len(frame) - 4
	if n > max {
		return nil, fmt.Errorf("%w: message of %d bytes, at most %d", engine.ErrTooLarge, n, max)
	}
	binary.LittleEndian.PutUint32(frame, uint32(n))
	return frame, nil
}

// readFrame reads a frame of at most max bytes, and returns it without its length. It allocates no more than twice
// what has come.
func readFrame(r io.Reader, max int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n == 0 || n > max {
		return nil, fmt.Errorf("%w: length %d", errProtocol, n)
	}
	const step = 1 << 20
	frame := make([]byte, min(n, step))
	for have := 0; ; {
		if _, err := io.ReadFull(r, frame[have:]); err != nil || len(frame) == n {
			return frame, err
		}
		have = len(frame)
		frame = append(frame, make([]byte, min(have, n-have))...)
	}
}

func appendBytes(to, b []byte) []byte {
	if b == nil {
		return append(to, 0)
	}
	return append(binary.AppendUvarint(to, uint64(len(b))+1), b...)
}

func appendPairs(to []byte, pairs []engine.Pair) []byte {
	to = binary.AppendUvarint(to, uint64(len(pairs)))
	for _, p := range pairs {
		to = appendBytes(appendBytes(to, p.Key), p.Value)
	}
	return to
}

func appendList(to []byte, list [][]byte) []byte {
	to = binary.AppendUvarint(to, uint64(len(list)))
	for _, b := range list {
		to = appendBytes(to, b)
	}
	return to
}

func appendFlag(to []byte, on bool) []byte {
	if on {
		return append(to, 1)
	}
	return append(to, 0)
}

// A decoder reads what follows the first byte of a frame. After something malformed it returns zero
// values, and end an error.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[size:]
	return n
}

// bytes returns a byte string, which aliases the frame.
func (d *decoder) bytes() []byte {
	n := d.number()
	if n == 0 {
		return nil
	}
	if n--; n > uint64(len(d.b)) {
		d.b, d.bad = nil, true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

// each calls f for each of the elements that follow, until one is malformed.
func (d *decoder) each(f func()) {
	for n := d.number(); n > 0 && !d.bad; n-- {
		f()
	}
}

func (d *decoder) list() (list [][]byte) {
	d.each(func() { list = append(list, d.bytes()) })
	return list
}

func (d *decoder) pairs() (pairs []engine.Pair) {
	d.each(func() { pairs = append(pairs, engine.Pair{Key: d.bytes(), Value: d.bytes()}) })
	return pairs
}

func (d *decoder) end() error {
	if d.bad || len(d.b) > 0 {
		return errProtocol
	}
	return nil
}

func appendBatch(to []byte, b *engine.Batch) []byte {
	to = appendFlag(to, b.Reclaim)
	return appendList(appendPairs(appendPairs(to, b.Guards), b.Sets), b.Deletes)
}

func (d *decoder) batch() *engine.Batch {
	return &engine.Batch{Reclaim: d.number() != 0, Guards: d.pairs(), Sets: d.pairs(), Deletes: d.list()}
}

func appendRange(to []byte, r engine.Range) []byte {
	to = binary.AppendUvarint(appendBytes(appendBytes(to, r.Start), r.End), uint64(r.Limit))
	return appendPairs(to, r.Guards)
}

func (d *decoder) scope() engine.Range {
	return engine.Range{Start: d.bytes(), End: d.bytes(), Limit: int(d.number()), Guards: d.pairs()}
}

// wireErrors are the errors that a reply tells apart. Their places are part of the protocol.
var wireErrors = []error{
	engine.ErrConflict, engine.ErrTooLarge, engine.ErrInvalid, engine.ErrNoSpace, engine.ErrUnavailable, engine.ErrUnknown,
	engine.ErrClosed, engine.ErrLocked, engine.ErrCorrupt, engine.ErrReadOnly, engine.ErrNewer, context.Canceled, context.DeadlineExceeded, engine.ErrMoved, ErrNoMove, engine.ErrReplaced,
}

func appendError(to []byte, err error) []byte {
	var bits uint64
	for i, e := range wireErrors {
		if errors.Is(err, e) {
			bits |= 1 << i
		}
	}
	to = binary.AppendUvarint(to, bits)
	var conflict *engine.ConflictError
	var key []byte
	if errors.As(err, &conflict) {
		key = conflict.Key
	}
	return appendBytes(appendBytes(to, key), []byte(err.Error()))
}

func (d *decoder) err() error {
	bits, key, text := d.number(), d.bytes(), string(d.bytes())
	if err := d.end(); err != nil {
		return err
	}
	if key != nil {
		return &engine.ConflictError{Key: slices.Clone(key)}
	}
	e := &remoteError{text: text}
	for i, known := range wireErrors {
		if bits&(1<<i) != 0 {
			e.is = append(e.is, known)
		}
	}
	return e
}

// A remoteError is an error of the owner's engine.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }
