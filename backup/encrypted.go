package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/engine/sealed"
)

// Encrypted returns a target that encrypts what is put into t, with the keys of a namespace. It does not encrypt the
// names of objects, which have numbers and times. A generation that is encrypted with a key that the keyring lacks is
// sealed.ErrKey: Options.NewGeneration makes a run begin another one. If t has a backup that is not encrypted, a run
// fails with sealed.ErrNotEncrypted. Without Encrypted a run fails with engine.ErrEncrypted if t has an encrypted one.
func Encrypted(t Target, ring *sealed.Keyring, namespace string) Target {
	return &encrypted{t, ring, namespace}
}

type encrypted struct {
	Target
	ring      *sealed.Keyring
	namespace string
}

// Put implements Target.
func (e *encrypted) Put(ctx context.Context, name string, r io.Reader) error {
	s, err := e.ring.Stream(ctx, e.namespace, name)
	if err != nil {
		return err
	}
	return e.Target.Put(ctx, name, s.Encrypt(r))
}

// Get implements Target.
func (e *encrypted) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	s, err := e.ring.Stream(ctx, e.namespace, name)
	if err != nil {
		return nil, err
	}
	in, err := s.Decrypt(offset, length, func(offset, length int64) (io.ReadCloser, error) { return e.Target.Get(ctx, name, offset, length) })
	if err != nil {
		return nil, damaged(name, err)
	}
	return &decrypted{in, name}, nil
}

// decrypted is an object that is decrypted.
type decrypted struct {
	io.ReadCloser
	name string
}

func (d *decrypted) Read(b []byte) (int, error) {
	n, err := d.ReadCloser.Read(b)
	return n, damaged(d.name, err)
}

// damaged makes what does not verify a damage of the target.
func damaged(name string, err error) error {
	if errors.Is(err, sealed.ErrForged) {
		return fmt.Errorf("%w: %s: %w", ErrTarget, name, err)
	}
	return err
}
