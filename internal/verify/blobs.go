package verify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A storedBlob is a blob and the number of its values.
type storedBlob struct {
	hash  keys.Hash
	parts int
}

// storedBlobs are blobs in the order of their keys, which is that of their hashes.
type storedBlobs []storedBlob

// addValue counts one value of a blob. Values come in the order of their keys.
func (s *storedBlobs) addValue(h keys.Hash) {
	if n := len(*s); n > 0 && (*s)[n-1].hash == h {
		(*s)[n-1].parts++
	} else {
		*s = append(*s, storedBlob{h, 1})
	}
}

// find returns the number of values of a blob, and whether s has the blob.
func (s storedBlobs) find(h keys.Hash) (parts int, ok bool) {
	i, ok := slices.BinarySearchFunc(s, h, func(b storedBlob, h keys.Hash) int { return bytes.Compare(b.hash[:], h[:]) })
	if !ok {
		return 0, false
	}
	return s[i].parts, true
}

// blobValues checks that each blob has a mark and as many values as the mark says, and
// that no mark is without its blob.
func (v *verifier) blobValues(ctx context.Context) error {
	v.Blobs = len(v.values)
	for _, b := range v.values {
		parts, ok := v.marks.find(b.hash)
		if ok && (parts == b.parts || parts == 0) { // 0: the mark is damaged, which the scan has reported
			continue
		}
		if err := v.recheckBlob(ctx, b.hash); err != nil {
			return err
		}
	}
	for _, mark := range v.marks {
		if _, ok := v.values.find(mark.hash); ok {
			continue
		}
		if err := v.recheckBlob(ctx, mark.hash); err != nil {
			return err
		}
	}
	return nil
}

// recheckBlob reads the mark and the values of a blob in one call: a scan reads its pages
// at different moments.
func (v *verifier) recheckBlob(ctx context.Context, h keys.Hash) error {
	const maxParts = 256
	ks := make([][]byte, 0, maxParts+1)
	ks = append(ks, v.store.Space.Mark(h))
	for part := range maxParts {
		ks = append(ks, v.store.Space.Blob(h, part))
	}
	vs, err := v.store.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	mark := vs[0]
	parts := len(slices.DeleteFunc(vs[1:], func(value []byte) bool { return value == nil }))
	if mark == nil {
		if parts > 0 {
			v.problem(fmt.Errorf("%w: its values are there without it", damage.ErrMissing), "mark of the blob at %x", h)
		}
		return nil
	}
	if m, err := blob.DecodeMark(ks[0], mark); err == nil && m.Parts != parts {
		v.problem(fmt.Errorf("%w: %d of %d values are there", damage.ErrMissing, parts, m.Parts), "blob at %x", h)
	}
	return nil
}

// contents reads every blob that something refers to, directly or by a list of chunks, and
// counts the blobs that nothing refers to.
func (v *verifier) contents(ctx context.Context) error {
	reached := map[blob.ID]bool{}
	for id, session := range v.referenced {
		if err := v.content(ctx, id, session, reached); err != nil {
			return err
		}
	}
	v.Unreferenced = max(0, v.Blobs-len(reached))
	return nil
}

// content reads a blob and the blobs of its list, unless reached has them already. session
// is the name of a session that refers to the blob.
func (v *verifier) content(ctx context.Context, id blob.ID, session string, reached map[blob.ID]bool) error {
	if reached[id] {
		return nil
	}
	reached[id] = true
	items, err := v.readBlob(ctx, id)
	if endsCheck(err) {
		return err
	}
	v.problemOf(session, codec.Corrupt(err, "blob %s", id))
	for _, item := range items {
		if err := v.content(ctx, item, session, reached); err != nil {
			return err
		}
	}
	v.step()
	return nil
}

// readBlob verifies the content of a blob and returns the items of its list, if it is one.
// A list that is only an item of another list is not read as a whole: it was read with the
// other one.
func (v *verifier) readBlob(ctx context.Context, id blob.ID) ([]blob.ID, error) {
	items, err := v.store.Blobs.Items(ctx, id)
	if err != nil {
		return nil, err
	}
	if _, direct := v.referenced[id]; direct || len(items) == 0 {
		_, err = v.store.Blobs.WriteTo(ctx, io.Discard, id)
	}
	return items, err
}

// index checks the collector's index.
func (v *verifier) index(ctx context.Context) error {
	stored := make([]keys.Hash, len(v.marks))
	for i := range stored {
		stored[i] = v.marks[i].hash
	}
	problems, err := v.collector.Check(ctx, gc.Checklist{
		Incarnations: slices.Collect(maps.Keys(v.lives)), Blobs: stored, Name: v.name,
		Uses: func(b keys.Hash, inc head.Incarnation) head.Revision { return v.uses[blobUse{b, inc}] },
	})
	for _, p := range problems {
		v.problem(p, "collector's index")
	}
	return err
}
