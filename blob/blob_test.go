package blob_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	ctx   = context.Background()
	space = keys.New("", [32]byte{1})
)

func open() (*blob.Store, engine.Engine) {
	e := memory.New()
	return blob.New(e, space, blob.DefaultChunking), e
}

func uploadID() (id [16]byte) {
	crand.Read(id[:])
	return id
}

// write stores what r delivers, pinned by an upload of its own.
func write(s *blob.Store, r io.Reader, size int64) (blob.ID, int64, error) {
	up := s.NewUpload(uploadID(), keys.Incarnation{}, time.Unix(1<<40, 0))
	d, err := up.Write(ctx, r, size)
	if err != nil {
		return blob.ID{}, 0, err
	}
	return d.ID, d.Size, up.Put(ctx, d)
}

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// records counts the records that an engine holds, without those of uploads.
func records(t *testing.T, e engine.Engine) (n, size int) {
	t.Helper()
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if space.Letter(p.Key) != keys.Upload {
			n++
			size += len(p.Value)
		}
	}
	return n, size
}

func TestEqualBytesAreStoredOnce(t *testing.T) {
	s, e := open()
	content := random(5<<20, 1)
	a, n, err := write(s, bytes.NewReader(content), -1)
	if err != nil || n != int64(len(content)) || a != blob.Sum(content) {
		t.Fatal(a, n, err)
	}
	count, size := records(t, e)
	if size > len(content)+len(content)/50 {
		t.Errorf("%d bytes take %d", len(content), size)
	}
	other := blob.New(e, space, blob.DefaultChunking) // knows no marks
	if b, _, err := write(other, bytes.NewReader(content), int64(n)); err != nil || b != a {
		t.Fatal(b, err)
	}
	if again, _ := records(t, e); again != count {
		t.Errorf("%d records, then %d", count, again)
	}
	// A change in the middle costs about the chunks around it.
	changed := bytes.Clone(content)
	copy(changed[2<<20:], "changed")
	if _, _, err := write(s, bytes.NewReader(changed), -1); err != nil {
		t.Fatal(err)
	}
	if _, grown := records(t, e); grown-size > 600<<10 {
		t.Errorf("a small change takes %d bytes", grown-size)
	}
	got, err := s.Read(ctx, a)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatal(err)
	}
}

func TestListsOfLists(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 70 MB")
	}
	s, _ := open()
	content := bytes.Repeat(random(1<<20, 3), 8)
	r := io.MultiReader(bytes.NewReader(content), bytes.NewReader(random(64<<20, 4)), bytes.NewReader(content))
	id, n, err := write(s, r, -1)
	if err != nil {
		t.Fatal(err)
	}
	w := &counter{}
	m, err := s.WriteTo(ctx, w, id)
	if err != nil || m != n || w.n != n {
		t.Fatal(m, n, err)
	}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func TestDamageIsNamed(t *testing.T) {
	s, e := open()
	id, _, err := write(s, bytes.NewReader(random(1<<20, 1)), -1)
	if err != nil {
		t.Fatal(err)
	}
	var pairs []engine.Pair
	for p, err := range e.Scan(ctx, space.All(keys.Blob)) {
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p)
	}
	for i, p := range pairs {
		for name, damaged := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"flipped": {Sets: []engine.Pair{{Key: p.Key, Value: flip(p.Value)}}},
			"swapped": {Sets: []engine.Pair{{Key: p.Key, Value: pairs[(i+1)%len(pairs)].Value}}},
		} {
			if err := e.Apply(ctx, &damaged); err != nil {
				t.Fatal(err)
			}
			var ce *damage.CorruptError
			if _, err := s.Read(ctx, id); !errors.As(err, &ce) {
				t.Fatalf("record %d %s: %v", i, name, err)
			}
			if _, err := s.WriteTo(ctx, io.Discard, id); !errors.As(err, &ce) {
				t.Fatalf("record %d %s: %v", i, name, err)
			}
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func flip(v []byte) []byte {
	v = bytes.Clone(v)
	v[len(v)/2] ^= 4
	return v
}

func FuzzRecord(f *testing.F) {
	s, e := open()
	if _, _, err := write(s, bytes.NewReader(random(300_000, 1)), -1); err != nil {
		f.Fatal(err)
	}
	for p, err := range e.Scan(ctx, space.All(keys.Blob)) {
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.Value[2 : len(p.Value)-4])
	}
	id := blob.Sum([]byte("x"))
	key := space.Blob(space.BlobHash(id), 0)
	f.Fuzz(func(t *testing.T, body []byte) {
		s, e := open()
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: codec.Encode(key, keys.Blob, body)}}}); err != nil {
			return
		}
		if content, err := s.Read(ctx, id); err == nil && blob.Sum(content) != id {
			t.Fatal("other content was returned")
		}
	})
}

// Marks and pins: no panic, and what is accepted is read as it would be written.
func FuzzMarkAndHold(f *testing.F) {
	key := space.Mark(keys.Hash{1})
	for _, m := range []blob.Mark{{Parts: 1, Bytes: 7}, {List: true, Parts: 1, Bytes: 900, Condemned: true}, {Parts: 2, Bytes: 1 << 20}, {Packed: true, Parts: 1}} {
		r := m.Encode(key)
		f.Add(r[2 : len(r)-4])
	}
	f.Add([]byte{})
	f.Add([]byte{byte(blob.Pinned)})
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := blob.DecodeMark(key, codec.Encode(key, keys.Mark, body)); err == nil {
			again := m.Encode(key)
			if again = again[2 : len(again)-4]; len(again) != len(body) || !bytes.Equal(again[:len(again)-8], body[:len(body)-8]) {
				t.Errorf("mark %x was accepted and is encoded as %x", body, again)
			}
		}
		at := space.Upload([16]byte{1}, keys.Hash{2})
		if p, err := blob.DecodePin(at, codec.Encode(at, keys.Upload, body)); err == nil && byte(p.Kind) != body[0] {
			t.Errorf("pin %x is read as %v", body, p)
		}
	})
}

func ExampleSum() {
	fmt.Println(blob.Sum([]byte("turnstone")))
	// Output: c617e9e92ff118742e6fde931bb5045b92c4913997ab75cdd3d6e4051e320ac8
}
