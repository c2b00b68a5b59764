package sealed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tink-crypto/tink-go/v2/core/cryptofmt"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// ErrForged says that a stream was changed, was cut off, or has another name.
var ErrForged = errors.New("sealed: it does not verify with the keys of the namespace")

// A Stream encrypts and decrypts what is too large for a value: a bundle, or an object of a backup. It consists of
// chunks of 64 KiB. Each is encrypted with AES-SIV, and bound to the name of the stream, to its number, and to whether
// it is the last one. So a part of a stream can be read alone. Streams of one name and equal contents have equal
// chunks.
type Stream struct {
	set  *keyset
	seal tink.DeterministicAEAD
	name string
}

// Stream returns the stream of a name. It encrypts with the newest key of a namespace, and decrypts with all keys.
func (k *Keyring) Stream(ctx context.Context, namespace, name string) (*Stream, error) {
	set, err := k.keyset(ctx, namespace)
	if err != nil {
		return nil, err
	}
	seal, err := set.sealing(set.newest)
	return &Stream{set, seal, name}, err
}

// Encrypted reports whether bytes are the beginning of a stream or of an encrypted value. No record of a store and no
// object of a backup that is not encrypted begins so.
func Encrypted(begin []byte) bool { return len(begin) > 0 && begin[0] == cryptofmt.TinkStartByte }

const (
	chunkBytes  = 64 << 10
	chunkSealed = chunkBytes + idSize + sivBytes
	sivBytes    = 16 // of the synthetic initialization vector
)

// bound returns what a chunk is bound to. No stored key is equal to that: one that begins so is that of a head, and
// shorter.
func (s *Stream) bound(number uint64, last bool) []byte {
	out := append([]byte("turnstone stream\x00"), s.name...)
	out = binary.BigEndian.AppendUint64(append(out, 0), number)
	if last {
		return append(out, 1)
	}
	return append(out, 0)
}

// Encrypt returns a reader of what r yields, encrypted. An error of r is its error.
func (s *Stream) Encrypt(r io.Reader) io.Reader {
	number, have, ended := uint64(0), 0, false
	plain := make([]byte, chunkBytes+1) // one byte more, which tells the last chunk
	return &chunks{next: func() ([]byte, error) {
		if ended {
			return nil, io.EOF
		}
		n, whole, err := fill(r, plain[have:])
		if err != nil {
			return nil, err
		}
		have += n
		ended = !whole
		out, err := s.seal.EncryptDeterministically(plain[:min(have, chunkBytes)], s.bound(number, ended))
		have = copy(plain, plain[min(have, chunkBytes):have])
		number++
		return out, err
	}}
}

// fill reads into b until it is full or r has ended. Any other error than the io.EOF of r itself is a failure.
func fill(r io.Reader, b []byte) (n int, full bool, err error) {
	for n < len(b) {
		k, err := r.Read(b[n:])
		n += k
		if err == io.EOF { // As io.Reader has it: a wrapped one is another error.
			return n, n == len(b), nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, true, nil
}

// Decrypt returns length bytes of the content from an offset on, which is within the content, or all that follow if
// length is negative. It calls get for a part of what Encrypt has made; closing the result closes what get returns. If
// the stream was cut off, reading all that follows ends with ErrForged.
func (s *Stream) Decrypt(offset, length int64, get func(offset, length int64) (io.ReadCloser, error)) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, fmt.Errorf("%w: an offset of %d bytes", ErrForged, offset)
	}
	first, all := offset/chunkBytes, int64(-1)
	if length >= 0 {
		all = ((offset+length+chunkBytes-1)/chunkBytes - first) * chunkSealed
	}
	in, err := get(first*chunkSealed, all)
	if err != nil {
		return nil, err
	}
	number, text, ended := uint64(first), make([]byte, chunkSealed), false
	d := &chunks{Closer: in, next: func() ([]byte, error) {
		n, _, err := fill(in, text)
		switch {
		case err != nil:
			return nil, err
		case n == 0 && ended:
			return nil, io.EOF
		case n == 0:
			return nil, fmt.Errorf("%w: it ends too early", ErrForged)
		case ended:
			return nil, fmt.Errorf("%w: there is more behind its end", ErrForged)
		}
		if number == 0 && !Encrypted(text[:n]) {
			return nil, ErrNotEncrypted
		}
		if id, ok := keyOf(text[:n]); ok && number == uint64(first) && !s.set.has(id) { // A later one has the same key.
			return nil, fmt.Errorf("%w: it is encrypted with key %08x, which the keyring lacks", ErrKey, id)
		}
		plain, err := s.set.opens.DecryptDeterministically(text[:n], s.bound(number, false))
		if err != nil {
			ended = true
			plain, err = s.set.opens.DecryptDeterministically(text[:n], s.bound(number, true))
		}
		if number++; err != nil {
			return nil, fmt.Errorf("%w: chunk %d", ErrForged, number)
		}
		return plain, nil
	}}
	if _, err := io.CopyN(io.Discard, d, offset-first*chunkBytes); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, in.Close())
	}
	if length < 0 {
		return d, nil
	}
	return &limited{io.LimitReader(d, length), in}, nil
}

type limited struct {
	io.Reader
	io.Closer
}

// chunks reads what next returns, until that fails.
type chunks struct {
	io.Closer
	next func() ([]byte, error)
	rest []byte
	err  error
}

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err == nil {
			c.rest, c.err = c.next()
		}
		if c.err != nil {
			return 0, c.err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
