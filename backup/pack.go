package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/blake3"
)

// packBytes is when a pack is full: what a run that was cut off has to write again at most, besides one bundle.
const packBytes = 64 << 20

// A pack is an object with bundles that is being written.
type pack struct {
	name string // without the directories
	path string
	w    *io.PipeWriter
	hash *blake3.Hasher
	n    int64
	put  chan error
}

func newPack(ctx context.Context, to Target, generation string, run int) *pack {
	var random [4]byte
	_, _ = rand.Read(random[:]) // does not fail
	name := fmt.Sprintf("%08d-%s", run, hex.EncodeToString(random[:]))
	r, w := io.Pipe()
	p := &pack{name: name, path: packPath(generation, name), w: w, hash: blake3.New(), put: make(chan error, 1)}
	go func() {
		err := to.Put(ctx, p.path, r)
		_ = r.CloseWithError(errEnded)
		p.put <- err
	}()
	return p
}

func packPath(generation, name string) string { return generation + "/packs/" + name }

func (p *pack) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	_, _ = p.hash.Write(b[:n])
	p.n += int64(n)
	return n, err
}

// close ends the pack, and reads back what was stored.
func (p *pack) close(ctx context.Context, to Target) error {
	_ = p.w.Close()
	if err := <-p.put; err != nil {
		return err
	}
	r, err := to.Get(ctx, p.path, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	stored := blake3.New()
	if _, err := io.Copy(stored, r); err != nil {
		return err
	}
	if sum(stored.Sum(nil)) != sum(p.hash.Sum(nil)) {
		return fmt.Errorf("%w: %s is not what was written", ErrTarget, p.path)
	}
	return nil
}

// abort ends a pack that is not to be stored, and returns why it could not be, if that is not because of abort.
func (p *pack) abort() error {
	_ = p.w.CloseWithError(errAborted)
	if err := <-p.put; !errors.Is(err, errAborted) {
		return err
	}
	return nil
}

var errAborted = errors.New("the run has failed")
