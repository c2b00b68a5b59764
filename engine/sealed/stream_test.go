package sealed_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

const chunk, sealedChunk = 64 << 10, 64<<10 + 21

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// whole returns what a stream decrypts.
func whole(s *sealed.Stream, text []byte, offset, length int64) ([]byte, error) {
	r, err := s.Decrypt(offset, length, func(offset, length int64) (io.ReadCloser, error) {
		part := text[min(offset, int64(len(text))):]
		if length >= 0 {
			part = part[:min(length, int64(len(part)))]
		}
		return io.NopCloser(iotest.HalfReader(bytes.NewReader(part))), nil
	})
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(r)
	return got, errors.Join(err, r.Close())
}

func stream(t *testing.T, k *sealed.Keyring, name string) *sealed.Stream {
	t.Helper()
	s, err := k.Stream(ctx, "n", name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each part of a stream is decrypted as it was encrypted, whatever its length is.
func TestES7_StreamsAreReadInParts(t *testing.T) {
	s := stream(t, storetest.Keyring(t, "n"), "name")
	for _, n := range []int{0, 1, chunk - 1, chunk, chunk + 1, 3 * chunk, 3*chunk + 5} {
		plain := random(n)
		text, err := io.ReadAll(s.Encrypt(iotest.OneByteReader(bytes.NewReader(plain))))
		if err != nil || n > 100 && bytes.Contains(text, plain[:16]) {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(uint64(n), 1))
		for i := range 50 {
			from, to := int64(rnd.IntN(n+1)), int64(-1)
			want := plain[from:]
			if i == 0 {
				from, want = 0, plain
			} else if i%2 == 0 {
				to = int64(rnd.IntN(n - int(from) + 1))
				want = plain[from : from+to]
			}
			if got, err := whole(s, text, from, to); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes from %d of %d: %d bytes, %v", to, from, n, len(got), err)
			}
		}
	}
	failed := errors.New("failed")
	if _, err := io.ReadAll(s.Encrypt(io.MultiReader(bytes.NewReader(random(2*chunk)), iotest.ErrReader(failed)))); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := s.Decrypt(0, -1, func(int64, int64) (io.ReadCloser, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// A stream that was changed, cut off, put together anew, or is of another name is told from what was written.
func TestES7_AForgedStreamIsKnown(t *testing.T) {
	k := storetest.Keyring(t, "n")
	s := stream(t, k, "name")
	text, err := io.ReadAll(s.Encrypt(bytes.NewReader(random(3*chunk + 5))))
	if err != nil {
		t.Fatal(err)
	}
	other, err := io.ReadAll(s.Encrypt(bytes.NewReader(random(2 * chunk))))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(text)
	flipped[2*sealedChunk+100] ^= 1
	otherID := bytes.Clone(text)
	otherID[sealedChunk+2] ^= 1
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, forged := range map[string][]byte{
		"empty": nil, "a byte": text[:1], "cut at a chunk": text[:2*sealedChunk], "cut in a chunk": text[:2*sealedChunk+50], "flipped": flipped, "another key in the middle": otherID,
		"longer": join(text, []byte("x")), "twice": join(text, text), "in another order": join(text[sealedChunk:2*sealedChunk], text[:sealedChunk], text[2*sealedChunk:]),
		"another end": join(text[:2*sealedChunk], other[sealedChunk:]), "without its begin": text[sealedChunk:],
	} {
		got, err := whole(s, forged, 0, -1)
		if !errors.Is(err, sealed.ErrForged) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := whole(s, []byte("BZh"), 0, -1); !errors.Is(err, sealed.ErrNotEncrypted) {
		t.Error(err)
	}
	for _, n := range []int{0, 10, chunk, chunk + 100} { // a connection that is cut is no end
		cut := io.MultiReader(bytes.NewReader(random(n)), iotest.ErrReader(io.ErrUnexpectedEOF))
		if _, err := io.ReadAll(s.Encrypt(cut)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes were encrypted: %v", n, err)
		}
		r, err := s.Decrypt(0, -1, func(int64, int64) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(text[:n]), iotest.ErrReader(io.ErrUnexpectedEOF))), nil
		})
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sealed.ErrForged) {
			t.Errorf("%d bytes were decrypted: %v", n, err)
		}
	}
	if got, err := whole(s, text[:2*sealedChunk], 0, 3*chunk); !errors.Is(err, sealed.ErrForged) {
		t.Errorf("%d bytes of a range, %v", len(got), err)
	}
	if _, err := whole(stream(t, k, "another name"), text, 0, -1); !errors.Is(err, sealed.ErrForged) {
		t.Error(err)
	}
	if _, err := whole(stream(t, storetest.Keyring(t, "n"), "name"), text, 0, -1); !errors.Is(err, sealed.ErrKey) {
		t.Error(err)
	}
	if _, err := k.Stream(ctx, "other", "name"); !errors.Is(err, sealed.ErrKey) {
		t.Error(err)
	}
}
