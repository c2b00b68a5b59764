// Package bundletest takes bundles apart, and makes bundles of frames, for tests.
package bundletest

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/turnstonedb/turnstone/internal/bundle"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Frame is a frame of a bundle.
type Frame struct {
	Kind byte
	Body []byte
}

// Frames returns the frames of a bundle but the last one.
func Frames(t testing.TB, b []byte) (out []Frame) {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(b[len(bundle.Magic):]))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	all, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) > 0 {
		n, m := binary.Uvarint(all[1:])
		out = append(out, Frame{all[0], all[1+m : 1+m+int(n)]})
		all = all[1+m+int(n):]
	}
	return out[:len(out)-1]
}

// Append appends the encoding of frames.
func Append(b []byte, frames ...Frame) []byte {
	for _, f := range frames {
		b = append(binary.AppendUvarint(append(b, f.Kind), uint64(len(f.Body))), f.Body...)
	}
	return b
}

// Bundle returns a bundle of frames, with an end that is right.
func Bundle(frames ...Frame) []byte {
	n := 0
	for _, f := range frames {
		if f.Kind == 'S' {
			n++
		}
	}
	return Sealed(Append(nil, frames...), n)
}

// Sealed returns a bundle of encoded frames, with an end that says so many sections.
func Sealed(frames []byte, sections int) []byte {
	sum := codec.BundleHash.Sum(frames)
	var end codec.Encoder
	end.Array(2)
	end.Uint(uint64(sections))
	end.Bytes(sum[:])
	out := bytes.NewBufferString(bundle.Magic)
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		panic(err) // constant options
	}
	_, _ = z.Write(Append(frames[:len(frames):len(frames)], Frame{'E', end.B})) // A buffer takes all.
	_ = z.Close()
	return out.Bytes()
}
