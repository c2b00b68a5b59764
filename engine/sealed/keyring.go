package sealed

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gofrs/flock"
	"github.com/tink-crypto/tink-go/v2/daead"
	tinkkeys "github.com/tink-crypto/tink-go/v2/keyset"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Keyring is a file with a keyset for each namespace. The whole file is encrypted, with a key that a Wrapper
// protects. Without the file, and what the Wrapper needs, nobody can read the namespaces: keep a copy of both, apart
// from copies of the store. A Keyring is safe for concurrent use. Processes of one machine may change the file at the
// same time; they lock a file beside it, whose name ends with ".lock".
type Keyring struct {
	path string
	by   Wrapper

	mu      sync.Mutex // guards the fields below
	text    []byte     // of the file, as it was read last
	content *content   // of text
}

// content is what the file of a keyring has encrypted.
type content struct {
	Namespaces map[string]entry `json:"namespaces"`
}

// An entry is the keyset of a namespace.
type entry struct {
	Names []byte `json:"names"` // the secret of the hashes that stand for texts
	Keys  []byte `json:"keys"`  // a keyset of Tink, in its binary form
}

// ErrKeyring says that a file is no keyring, or was changed, or that Key or Passphrase was given another secret.
var ErrKeyring = errors.New("it can't be read as a keyring")

// newKeyring returns a keyring whose file is the one that path leads to.
func newKeyring(path string, by Wrapper) (*Keyring, error) {
	if by == nil {
		return nil, fmt.Errorf("%w: the wrapper is nil", engine.ErrInvalid)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return &Keyring{path: path, by: by}, nil
}

// CreateKeyring makes the file of a keyring without keysets. If there is a file of the name, the error matches
// fs.ErrExist.
func CreateKeyring(ctx context.Context, path string, by Wrapper) (*Keyring, error) {
	k, err := newKeyring(path, by)
	if err != nil {
		return nil, err
	}
	err = k.change(ctx, func(c *content) (*content, error) {
		if c != nil {
			return nil, fmt.Errorf("sealed: keyring %s: %w", path, fs.ErrExist)
		}
		return &content{Namespaces: map[string]entry{}}, nil
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// OpenKeyring reads the file of a keyring.
func OpenKeyring(ctx context.Context, path string, by Wrapper) (*Keyring, error) {
	k, err := newKeyring(path, by)
	if err != nil {
		return nil, err
	}
	if _, err := k.read(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// Namespaces returns the names of the namespaces that have a keyset, in order.
func (k *Keyring) Namespaces(ctx context.Context) (names []string, err error) {
	c, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	for name := range c.Namespaces {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Add makes a keyset for a namespace. It fails with an error that matches fs.ErrExist if there is one.
func (k *Keyring) Add(ctx context.Context, namespace string) error {
	if !utf8.ValidString(namespace) {
		return fmt.Errorf("%w: the name of the namespace is no UTF-8", engine.ErrInvalid)
	}
	return k.edit(ctx, func(c *content) error {
		if _, ok := c.Namespaces[namespace]; ok {
			return fmt.Errorf("sealed: a keyset of namespace %q: %w", namespace, fs.ErrExist)
		}
		h, err := tinkkeys.NewHandle(daead.AESSIVKeyTemplate())
		if err != nil {
			return err
		}
		e := entry{Names: make([]byte, codec.HashSize)}
		_, _ = rand.Read(e.Names) // never fails
		if e.Keys, err = bytesOf(h); err != nil {
			return err
		}
		c.Namespaces[namespace] = e
		return nil
	})
}

// Rotate adds a new key to the keyset of a namespace. Engine.Reencrypt encrypts the store with it. If processes on
// several machines have the store open, give all of them the new file before that.
func (k *Keyring) Rotate(ctx context.Context, namespace string) error {
	return k.manage(ctx, namespace, func(m *tinkkeys.Manager, _ *tinkkeys.Handle) error {
		id, err := m.Add(daead.AESSIVKeyTemplate())
		if err == nil {
			err = m.SetPrimary(id)
		}
		return err
	})
}

// forget removes the keys of a namespace that were made before one.
func (k *Keyring) forget(ctx context.Context, namespace string, before uint32) error {
	return k.manage(ctx, namespace, func(m *tinkkeys.Manager, h *tinkkeys.Handle) error {
		var ids []uint32 // in the order in which they were made
		for _, key := range h.KeysetInfo().GetKeyInfo() {
			ids = append(ids, key.GetKeyId())
		}
		for _, id := range ids[:max(slices.Index(ids, before), 0)] {
			if err := m.Delete(id); err != nil {
				return err
			}
		}
		return nil
	})
}

// manage changes the keyset of a namespace.
func (k *Keyring) manage(ctx context.Context, namespace string, f func(*tinkkeys.Manager, *tinkkeys.Handle) error) error {
	return k.edit(ctx, func(c *content) error {
		e, ok := c.Namespaces[namespace]
		if !ok {
			return k.noKey(namespace)
		}
		h, err := e.handle()
		if err != nil {
			return err
		}
		m := tinkkeys.NewManagerFromHandle(h)
		if err := f(m, h); err != nil {
			return err
		}
		if h, err = m.Handle(); err != nil {
			return err
		}
		e.Keys, err = bytesOf(h)
		c.Namespaces[namespace] = e
		return err
	})
}

// Destroy removes the keyset of a namespace. Whoever has no other copy of the file can't read what is encrypted with it
// any more. Engines that are open go on with the keyset until they are closed, and what they write then is lost: stop
// the hosts before. The old blocks of the file may still be on its disk, encrypted with the Wrapper's key.
func (k *Keyring) Destroy(ctx context.Context, namespace string) error {
	return k.edit(ctx, func(c *content) error {
		if _, ok := c.Namespaces[namespace]; !ok {
			return k.noKey(namespace)
		}
		delete(c.Namespaces, namespace)
		return nil
	})
}

func (k *Keyring) noKey(namespace string) error {
	return fmt.Errorf("%w: the keyring has no keyset of namespace %q", ErrKey, namespace)
}

// read returns what the file has now.
func (k *Keyring) read(ctx context.Context) (*content, error) {
	text, err := os.ReadFile(k.path)
	if err != nil {
		return nil, fmt.Errorf("sealed: keyring: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.content == nil || !bytes.Equal(text, k.text) {
		c, err := decodeFile(ctx, text, k.by)
		if err != nil {
			return nil, fmt.Errorf("sealed: keyring %s: %w", k.path, err)
		}
		k.text, k.content = text, c
	}
	return k.content, nil
}

// change writes what f makes of the file's content, or of nil if there is no file. It waits for other processes that
// change the file.
func (k *Keyring) change(ctx context.Context, f func(*content) (*content, error)) error {
	lock := flock.New(k.path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 10*time.Millisecond); err != nil {
		return fmt.Errorf("sealed: keyring: %w", err)
	}
	defer lock.Close()
	c, err := k.read(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c = nil
	case err != nil:
		return err
	default:
		c = &content{maps.Clone(c.Namespaces)}
	}
	if c, err = f(c); err != nil {
		return err
	}
	text, err := encodeFile(ctx, c, k.by)
	if err != nil {
		return err
	}
	return write(k.path, text)
}

// edit is change for a file that is there.
func (k *Keyring) edit(ctx context.Context, f func(*content) error) error {
	return k.change(ctx, func(c *content) (*content, error) {
		if c == nil {
			return nil, fmt.Errorf("sealed: keyring %s: %w", k.path, fs.ErrNotExist)
		}
		return c, f(c)
	})
}

// write replaces the file, or makes it. A file that was there keeps its owner and mode.
func write(path string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new") // for this user alone
	if err != nil {
		return fmt.Errorf("sealed: keyring: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("sealed: keyring: %w", errors.Join(err, os.Remove(f.Name())))
		}
	}()
	if was, serr := os.Stat(path); serr == nil {
		err = localdir.Resemble(f, was)
	}
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return localdir.Sync(filepath.Dir(path))
}

// keyset returns the keys of a namespace, as the file has them now.
func (k *Keyring) keyset(ctx context.Context, namespace string) (*keyset, error) {
	c, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	e, ok := c.Namespaces[namespace]
	if !ok {
		return nil, k.noKey(namespace)
	}
	h, err := e.handle()
	if err != nil || len(e.Names) != codec.HashSize {
		return nil, fmt.Errorf("%w: %s: keyset of namespace %q: %w", ErrKeyring, k.path, namespace, errors.Join(err, fmt.Errorf("a secret of %d bytes", len(e.Names))))
	}
	info := h.KeysetInfo()
	s := &keyset{names: codec.NewKeyed([codec.HashSize]byte(e.Names)), handle: h, newest: info.GetPrimaryKeyId()}
	for _, key := range info.GetKeyInfo() {
		s.ids = append(s.ids, key.GetKeyId())
	}
	s.opens, err = daead.New(h)
	return s, err
}
