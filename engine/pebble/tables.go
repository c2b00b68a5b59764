package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// blockTrailer is what stands behind each block of a table: a byte that names the
// compression, and the checksum of the block and that byte.
const blockTrailer = 5

// A table is the file of a table that Pebble reads. Pebble checks every block.
// When a checksum does not match, Pebble flips one bit of the block after the
// other to find the one that changed. In a block of 512 KiB this takes eight
// seconds, and no context ends it. So a table checks the blocks before Pebble
// does, and reports the damage at once.
//
// Pebble reads a block with its trailer in one call of ReadAt. It reads nothing
// else but the footer, which ends the file.
type table struct {
	vfs.File
	name string
	size int64
}

// failPause is how long a failed read of a table is held up: Pebble tries a
// compaction that can't read again without a pause.
const failPause = 10 * time.Millisecond

func newTable(f vfs.File, name string) (vfs.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &table{f, name, info.Size()}, nil
}

// ReadAt implements io.ReaderAt.
func (t *table) ReadAt(p []byte, off int64) (int, error) {
	n, err := t.File.ReadAt(p, off)
	if errors.Is(err, io.EOF) && n < len(p) {
		err = &damage{file: t.name, what: fmt.Sprintf("it ends within %d bytes at offset %d", len(p), off)}
	}
	end := off + int64(len(p))
	if err == nil && end < t.size && len(p) > blockTrailer && blockSum(p[:len(p)-4]) != binary.LittleEndian.Uint32(p[len(p)-4:]) {
		err = &damage{file: t.name, what: fmt.Sprintf("the checksum of the block of %d bytes at offset %d does not match", len(p), off)}
	}
	if err != nil {
		time.Sleep(failPause)
		return 0, err
	}
	return n, nil
}

// blockSum is the checksum that Pebble writes behind b (LevelDB's masked CRC-32C).
func blockSum(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
