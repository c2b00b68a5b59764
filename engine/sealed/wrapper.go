package sealed

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"golang.org/x/crypto/argon2"
)

// A Wrapper encrypts the key of a keyring's file, for example in a key management service. Every change of the file
// makes a new key.
type Wrapper interface {
	// Wrap returns the encrypted form of a key of 32 bytes. It retains nothing of it.
	Wrap(ctx context.Context, key []byte) ([]byte, error)
	// Unwrap returns the key that Wrap was called with.
	Unwrap(ctx context.Context, wrapped []byte) ([]byte, error)
}

const keyBytes = 32 // of the key of a file

// Key returns a Wrapper that encrypts with a secret key of 32 random bytes, such as one that the environment has:
// AES-256-GCM.
func Key(secret [keyBytes]byte) Wrapper { return keyWrapper(secret) }

type keyWrapper [keyBytes]byte

func (w keyWrapper) Wrap(_ context.Context, key []byte) ([]byte, error) {
	return encrypt(w[:], key, nil)
}

func (w keyWrapper) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	return decrypt(w[:], wrapped, nil)
}

// Passphrase returns a Wrapper that encrypts with what Argon2id (RFC 9106) makes of a passphrase, with the second
// recommended parameters: 3 passes over 64 MiB, 4 lanes. It takes about a tenth of a second.
func Passphrase(text string) Wrapper { return passphrase(text) }

type passphrase string

// Parameters of Argon2id, and bounds of those that a file may ask for.
const (
	saltBytes            = 16
	passes, mostPasses   = 3, 10
	memory, mostMemory   = 64 << 10, 1 << 20 // KiB
	lanes                = 4
	passphraseParameters = saltBytes + 9
)

func (p passphrase) Wrap(_ context.Context, key []byte) ([]byte, error) {
	out := make([]byte, saltBytes, passphraseParameters)
	_, _ = rand.Read(out) // never fails
	out = binary.BigEndian.AppendUint32(out, passes)
	out = binary.BigEndian.AppendUint32(out, memory)
	out = append(out, lanes)
	sealed, err := encrypt(p.key(out), key, out)
	return append(out, sealed...), err
}

func (p passphrase) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	if len(wrapped) < passphraseParameters {
		return nil, fmt.Errorf("%w: it is not encrypted with a passphrase", ErrKeyring)
	}
	head := wrapped[:passphraseParameters]
	if t, m, l := binary.BigEndian.Uint32(head[saltBytes:]), binary.BigEndian.Uint32(head[saltBytes+4:]), head[saltBytes+8]; t < 1 || t > mostPasses || m > mostMemory || l < 1 {
		return nil, fmt.Errorf("%w: it asks for %d passes over %d KiB in %d lanes", ErrKeyring, t, m, l)
	}
	return decrypt(p.key(head), wrapped[passphraseParameters:], head)
}

func (p passphrase) key(head []byte) []byte {
	return argon2.IDKey([]byte(p), head[:saltBytes], binary.BigEndian.Uint32(head[saltBytes:]), binary.BigEndian.Uint32(head[saltBytes+4:]), head[saltBytes+8], keyBytes)
}

func encrypt(key, text, with []byte) ([]byte, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, text, with), nil
}

// decrypt decrypts what encrypt has made. It fails with ErrKeyring if that was made with another key, or was changed.
func decrypt(key, text, with []byte) ([]byte, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, text, with)
	if err != nil {
		return nil, fmt.Errorf("%w: the passphrase or the secret is another one, or the file was changed", ErrKeyring)
	}
	return plain, nil
}

// gcm returns AES-256-GCM that makes its nonces.
func gcm(key []byte) (cipher.AEAD, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("a key of %d bytes", len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// A file is the file of a keyring, in JSON.
type file struct {
	Format  string `json:"format"`
	Wrapped []byte `json:"wrapped"` // the key of Sealed, from Wrapper.Wrap
	Sealed  []byte `json:"sealed"`  // content in JSON
}

const format = "turnstone keyring 1"

func encodeFile(ctx context.Context, c *content, by Wrapper) ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	f := file{Format: format}
	if f.Wrapped, err = by.Wrap(ctx, key); err != nil {
		return nil, fmt.Errorf("sealed: keyring: %w", err)
	}
	if f.Sealed, err = encrypt(key, text, []byte(format)); err != nil {
		return nil, err
	}
	return f.encode()
}

func (f *file) encode() ([]byte, error) {
	out, err := json.MarshalIndent(f, "", "  ")
	return append(out, '\n'), err
}

func decodeFile(ctx context.Context, text []byte, by Wrapper) (*content, error) {
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeyring, err)
	}
	if f.Format != format {
		return nil, fmt.Errorf("%w: its format is %.40q, and %q is known", ErrKeyring, f.Format, format)
	}
	if same, err := f.encode(); err != nil || !bytes.Equal(same, text) {
		return nil, fmt.Errorf("%w: it was changed", ErrKeyring)
	}
	key, err := by.Unwrap(ctx, f.Wrapped)
	if err != nil {
		return nil, err
	}
	if text, err = decrypt(key, f.Sealed, []byte(format)); err != nil {
		return nil, err
	}
	c := &content{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeyring, err)
	}
	if c.Namespaces == nil {
		c.Namespaces = map[string]entry{}
	}
	return c, nil
}
