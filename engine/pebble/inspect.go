package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/turnstonedb/turnstone/engine"
)

// An inspection is what is known of the files of a store before Pebble opens it.
type inspection struct {
	exists   bool
	manifest string   // name of the MANIFEST that counts
	note     *note    // what its note says, or nil
	logs     []uint64 // numbers of the logs that Pebble will replay
	logUsed  int64    // bytes of them that hold something
	stale    []string // notes of files that are gone
}

// inspect compares the files in dir with their notes and with each other. It
// finds what Pebble would take for an empty or an older store, and changes nothing.
func (n *noted) inspect() (*inspection, error) {
	names, err := n.List(n.dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	in := &inspection{}
	in.manifest = marked(names, "manifest")
	if in.manifest == "" {
		return in, unfinished(names)
	}
	in.exists = true
	if !slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, "marker.format-version.") }) &&
		slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, "OPTIONS-") }) {
		return nil, &damage{file: "marker.format-version", what: "the file is missing"}
	}
	if v, err := strconv.ParseUint(marked(names, "format-version"), 10, 64); err == nil && v > uint64(pebble.FormatNewest) {
		return nil, fmt.Errorf("%w: Pebble's format %d, and this program reads up to %d", engine.ErrNewer, v, uint64(pebble.FormatNewest))
	}
	first, err := n.inspectManifest(in, names)
	if err != nil {
		return nil, err
	}
	return in, n.inspectLogs(in, names, first)
}

// marked returns what the newest marker of a kind says, or "": the name of the MANIFEST that
// counts, or the version of Pebble's format.
func marked(names []string, kind string) (value string) {
	newest := uint64(0)
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, "marker."+kind+".")
		if !ok {
			continue
		}
		digits, v, _ := strings.Cut(rest, ".")
		if num, err := strconv.ParseUint(digits, 10, 64); err == nil && num >= newest {
			newest, value = num, v
		}
	}
	return value
}

// unfinished returns nil if a directory without a marker for the MANIFEST holds
// nothing, or only what a creation leaves that was interrupted: the marker is
// placed before all other files are made.
func unfinished(names []string) error {
	for _, name := range names {
		_, isLog := logNumber(name)
		if isLog || strings.HasSuffix(name, ".sst") || strings.HasPrefix(name, "OPTIONS-") || strings.HasPrefix(name, "marker.") || name == "CURRENT" {
			return &damage{file: "marker.manifest", what: "the file is missing, but there is " + name}
		}
	}
	return nil
}

func (n *noted) readAll(name string) ([]byte, error) {
	f, err := n.fence.Open(n.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// inspectManifest checks the MANIFEST against its note and returns the number of
// the first log whose content is not in tables.
func (n *noted) inspectManifest(in *inspection, names []string) (firstLog uint64, err error) {
	content, err := n.readAll(in.manifest)
	if errors.Is(err, os.ErrNotExist) {
		return 0, &damage{file: in.manifest, what: "the file is missing"}
	} else if err != nil {
		return 0, err
	}
	noteName := manifestNote + in.manifest
	if slices.Contains(names, noteName) {
		b, err := n.readAll(noteName)
		if err != nil {
			return 0, err
		}
		note, err := parseNote(noteName, b)
		if err != nil {
			return 0, err
		}
		if int64(len(content)) < note.size {
			return 0, &damage{file: in.manifest, what: fmt.Sprintf("it has %d bytes, %d were durable", len(content), note.size)}
		}
		content = content[:note.size]
		if crc32.Checksum(content, castagnoli) != note.sum {
			return 0, &damage{file: in.manifest, what: fmt.Sprintf("the checksum of its first %d bytes does not match", note.size)}
		}
		in.note = &note
		n.durable = map[string]int64{in.manifest: note.size}
	}
	for _, name := range names {
		if strings.HasPrefix(name, manifestNote+"MANIFEST-") && name != noteName {
			in.stale = append(in.stale, name)
		}
	}
	r := record.NewReader(bytes.NewReader(content), 0)
	for {
		edit, err := r.Next()
		if err != nil {
			return firstLog, nil // Pebble reads the MANIFEST up to here, too
		}
		b, err := io.ReadAll(edit)
		if err != nil {
			return firstLog, nil
		}
		if num := unflushed(b); num != 0 {
			firstLog = num
		}
	}
}

// unflushed returns the number of the first log that is not in tables, which is
// among the first fields of an edit in a MANIFEST, or 0 if the edit does not change it.
func unflushed(edit []byte) uint64 {
	uvarint := func() uint64 {
		v, k := binary.Uvarint(edit)
		edit = edit[max(k, 0):]
		return v
	}
	if len(edit) > 0 && edit[0] == 1 { // the name of the comparer comes first
		uvarint()
		edit = edit[min(uvarint(), uint64(len(edit))):]
	}
	if len(edit) > 0 && edit[0] == 2 {
		uvarint()
		return uvarint()
	}
	return 0
}

// rewrite makes the note of the MANIFEST durable again. An earlier process may have
// written it and died of a sync that failed; the system then has it in memory,
// takes it for durable, and a loss of power brings the older one back.
func (n *noted) rewrite(in *inspection) error {
	if in.note == nil {
		return nil
	}
	f, err := n.fence.OpenReadWrite(n.path(manifestNote+in.manifest), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	next := *in.note
	next.seq++
	return errors.Join(writeNote(f, next, false), f.Close())
}
