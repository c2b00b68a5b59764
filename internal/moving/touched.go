package moving

import (
	"bytes"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

const (
	// noteBytes bounds the key and the value of a note.
	noteBytes = 64 << 10
	// noteRoom is what a note has for keys. Each takes two more bytes at most.
	noteRoom = noteBytes - 64
)

// widths are how many bytes a note has of the keys, if whole ones are too many: a letter and what comes first after it,
// which often is a session; or the letter alone, of which there are few.
var widths = []int{0, 17, 1}

// touched returns the note of a batch.
func touched(b *engine.Batch) head.Touched {
	prefix := len(keys.Prefix(""))
	var note head.Touched
	for _, width := range widths {
		note = head.Touched{Width: uint64(width)}
		add := func(key []byte) {
			k := key[min(prefix, len(key)):]
			if width > 0 {
				k = k[:min(width, len(k))]
			}
			note.Keys = append(note.Keys, k)
		}
		for _, p := range b.Sets {
			add(p.Key)
		}
		for _, k := range b.Deletes {
			add(k)
		}
		slices.SortFunc(note.Keys, bytes.Compare)
		note.Keys = slices.CompactFunc(note.Keys, bytes.Equal)
		size := 0
		for _, k := range note.Keys {
			size += len(k) + 3
		}
		if size <= noteRoom {
			break
		}
	}
	return note
}
