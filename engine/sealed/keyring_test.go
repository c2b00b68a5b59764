package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/sealed"
)

// A keyring is changed by several processes, one after the other, and is whole at any time.
func TestES5_AKeyringIsWhole(t *testing.T) {
	path, _ := newRing(t)
	var workers sync.WaitGroup
	for w := range 4 {
		k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
		if err != nil {
			t.Fatal(err)
		}
		workers.Go(func() {
			for i := range 5 {
				if err := k.Add(ctx, fmt.Sprint(w, "-", i)); err != nil {
					t.Error(err)
				}
				if _, err := k.Namespaces(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	if names, err := k.Namespaces(ctx); len(names) != 20 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if err := k.Add(ctx, "1-1"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if _, err := sealed.CreateKeyring(ctx, path, sealed.Key([32]byte{1})); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	for _, f := range []func(context.Context, string) error{k.Rotate, k.Destroy} {
		if err := f(ctx, "none"); !errors.Is(err, sealed.ErrKey) {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, by := range []sealed.Wrapper{sealed.Key([32]byte{2}), sealed.Passphrase("x")} {
		if _, err := sealed.OpenKeyring(ctx, path, by); !errors.Is(err, sealed.ErrKeyring) {
			t.Error(err)
		}
	}
	for at := range text {
		harmed := bytes.Clone(text)
		harmed[at] ^= 0x20
		if err := os.WriteFile(path, harmed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1})); !errors.Is(err, sealed.ErrKeyring) {
			t.Fatalf("byte %d of %q: %v", at, harmed, err)
		}
	}
	if _, err := sealed.OpenKeyring(ctx, path+"x", sealed.Key([32]byte{1})); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A passphrase, a secret, or a service of the host opens a keyring.
func TestES5_WhatOpensAKeyring(t *testing.T) {
	for name, by := range map[string]sealed.Wrapper{"passphrase": sealed.Passphrase("correct horse"), "service": service{}} {
		path := filepath.Join(t.TempDir(), "keys")
		k, err := sealed.CreateKeyring(ctx, path, by)
		if err == nil {
			err = k.Add(ctx, "n")
		}
		if err == nil {
			k, err = sealed.OpenKeyring(ctx, path, by)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if names, err := k.Namespaces(ctx); len(names) != 1 || err != nil {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	if _, err := sealed.CreateKeyring(ctx, filepath.Join(t.TempDir(), "keys"), nil); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	if _, err := sealed.CreateKeyring(ctx, filepath.Join(t.TempDir(), "keys"), away{}); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
}

// A keyring that is changed through a link stays one file, with its mode and owner.
func TestES5_AKeyringMayBeALink(t *testing.T) {
	path, _ := newRing(t, "")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(path, link), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // who changes the keyring of somebody else
		must(t, os.Chown(path, 65534, 65534))
	}
	k, err := sealed.OpenKeyring(ctx, link, sealed.Key([32]byte{1}))
	if err == nil {
		err = k.Destroy(ctx, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	if k, err = sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1})); err != nil {
		t.Fatal(err)
	}
	if names, err := k.Namespaces(ctx); len(names) > 0 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if s := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && s.Uid != 65534 {
		t.Errorf("the file is of user %d", s.Uid)
	}
	if err := k.Add(ctx, "\xff"); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
}

// A service is a Wrapper as a key management service is one.
type service struct{}

func (service) Wrap(_ context.Context, key []byte) ([]byte, error) {
	return append([]byte("wrapped:"), key...), nil
}

func (service) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	return bytes.TrimPrefix(wrapped, []byte("wrapped:")), nil
}

type away struct{ service }

func (away) Wrap(context.Context, []byte) ([]byte, error) { return nil, engine.ErrUnavailable }
