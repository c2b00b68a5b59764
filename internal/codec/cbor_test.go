package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// The oracle: deterministic CBOR as a library that others use makes it.
func oracle(t testing.TB, v any) []byte {
	t.Helper()
	mode, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		t.Fatal(err)
	}
	b, err := mode.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEncodingIsDeterministicCBOR(t *testing.T) {
	for _, n := range []uint64{0, 1, 23, 24, 255, 256, 65535, 65536, math.MaxUint32, math.MaxUint32 + 1, math.MaxUint64} {
		var e codec.Encoder
		e.Array(4)
		e.Uint(n)
		e.Bytes(bytes.Repeat([]byte{7}, int(n%70000)))
		e.Text("grüße")
		e.Null()
		want := oracle(t, []any{n, bytes.Repeat([]byte{7}, int(n%70000)), "grüße", nil})
		if !bytes.Equal(e.B, want) {
			t.Fatalf("%d: %x, want %x", n, e.B[:20], want[:20])
		}
		d := codec.Decoder{B: want}
		d.Shape(4)
		if got := d.Uint(); got != n {
			t.Errorf("%d is read as %d", n, got)
		}
		if got := len(d.Bytes()); got != int(n%70000) {
			t.Errorf("%d bytes", got)
		}
		if got := d.Text(); got != "grüße" || !d.Null() {
			t.Errorf("%q", got)
		}
		if err := d.Done(); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyTheOneEncodingIsAccepted(t *testing.T) {
	for name, b := range map[string][]byte{
		"number not shortest":    {0x81, 0x18, 0x05},
		"longer still":           {0x81, 0x19, 0x00, 0xff},
		"array head not short":   {0x98, 0x01, 0x05},
		"indefinite array":       {0x9f, 0x05, 0xff},
		"trailing byte":          {0x81, 0x05, 0x00},
		"cut":                    {0x81},
		"another type":           {0x81, 0x20},
		"reserved head":          {0x81, 0x1c},
		"nothing":                {},
		"array longer than data": {0x9a, 0xff, 0xff, 0xff, 0xff, 0x05},
	} {
		d := codec.Decoder{B: b}
		for range d.Array(10) {
			d.Uint()
		}
		if err := d.Done(); !errors.Is(err, damage.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d := codec.Decoder{B: []byte{0x62, 0xff, 0xfe}}
	if d.Text(); !errors.Is(d.Done(), damage.ErrMalformed) {
		t.Error("text that is not UTF-8 was accepted")
	}
}

// Whatever the decoder accepts, the oracle reads as the same and encodes back
// to the same bytes.
func FuzzCBOR(f *testing.F) {
	f.Add(oracle(f, []any{uint64(1), []byte("x"), "y", nil, []any{}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e codec.Encoder
		d := codec.Decoder{B: b}
		var item func(depth int)
		item = func(depth int) {
			switch {
			case d.Null():
				e.Null()
			case d.NextIsUint():
				e.Uint(d.Uint())
			case d.NextIsArray() && depth < 5:
				n := d.Array(100)
				e.Array(n)
				for range n {
					if d.Err() != nil {
						return
					}
					item(depth + 1)
				}
			case len(d.B) > 0 && d.B[0]>>5 == 2:
				e.Bytes(d.Bytes())
			default:
				e.Text(d.Text())
			}
		}
		item(0)
		if d.Done() != nil {
			return
		}
		if !bytes.Equal(e.B, b) {
			t.Fatalf("%x was accepted and is encoded as %x", b, e.B)
		}
		if err := cbor.Wellformed(b); err != nil {
			t.Fatalf("%x: %v", b, err)
		}
	})
}

func TestARecordIsBoundToItsKeyAndType(t *testing.T) {
	key, other := []byte("key"), []byte("kez")
	r := codec.Encode(key, 'x', []byte("body"))
	if b, err := codec.Decode(key, r, 'x'); err != nil || string(b) != "body" {
		t.Fatal(string(b), err)
	}
	if _, err := codec.Decode(other, r, 'x'); !errors.Is(err, damage.ErrChecksum) {
		t.Errorf("another key: %v", err)
	}
	if _, err := codec.Decode(key, r, 'y'); !errors.Is(err, damage.ErrMalformed) {
		t.Errorf("another type: %v", err)
	}
	if _, err := codec.Decode(key, nil, 'x'); !errors.Is(err, damage.ErrMissing) {
		t.Errorf("absent: %v", err)
	}
	for i := range r {
		for bit := range 8 {
			r[i] ^= 1 << bit
			if _, err := codec.Decode(key, r, 'x'); err == nil {
				t.Errorf("bit %d of byte %d flipped unnoticed", bit, i)
			}
			r[i] ^= 1 << bit
		}
		if _, err := codec.Decode(key, r[:i], 'x'); err == nil {
			t.Errorf("cut to %d bytes unnoticed", i)
		}
	}
	for _, version := range []byte{codec.Version - 1, codec.Version + 1} {
		other := codec.EncodeTail(key, []byte{'x', version}, 0)
		_, err := codec.Decode(key, other, 'x')
		var fe *damage.FormatError
		if !errors.As(err, &fe) || fe.Have != uint64(version) || fe.Want != codec.Version || !errors.Is(err, damage.ErrFormat) {
			t.Errorf("version %d: %v", version, err)
		}
		var corrupt *damage.CorruptError
		err = codec.Corrupt(fmt.Errorf("reading: %w", err), "the %s", "thing")
		if !errors.As(err, &fe) || fe.Object != "the thing" || errors.As(err, &corrupt) {
			t.Errorf("version %d, named: %v", version, err)
		}
		if again := codec.Corrupt(err, "another"); again != err {
			t.Errorf("version %d, named twice: %v", version, again)
		}
		other[1] = codec.Version // without its checksum that is damage
		if _, err := codec.Decode(key, other, 'x'); !errors.Is(err, damage.ErrChecksum) {
			t.Errorf("version %d, altered: %v", version, err)
		}
	}
}
