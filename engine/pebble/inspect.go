package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"

	"github.com/turnstonedb/turnstone/engine"
)

// An inspection has what inspect found out about the files of a store before Pebble opens it.
type inspection struct {
	exists   bool
	past     *past    // the notes, or nil
	manifest extent   // of the MANIFEST that counts
	logs     []uint64 // numbers of the logs that are there, in order
	logUsed  int64    // bytes of the logs that Pebble will replay
	spare    bool     // there is a spare log
}

// inspect compares the files in dir with the notes and with each other. It finds damage that Pebble would take for an
// empty or an older store. It changes nothing.
func (n *noted) inspect() (*inspection, error) {
	names, err := n.fence.List(n.dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	in := &inspection{spare: slices.Contains(names, spareName)}
	for _, name := range names {
		if num, ok := logNumber(name); ok {
			in.logs = append(in.logs, num)
		}
	}
	if in.past, err = n.readNotes(); err != nil {
		return nil, err
	}
	manifest := marked(names, "manifest")
	if manifest == "" {
		return in, unfinished(names, in.past)
	}
	in.exists = true
	format := marked(names, "format-version")
	if format == "" && in.past.whole() {
		return nil, &damage{file: "marker.format-version", what: "the file is missing"}
	}
	if v, err := strconv.ParseUint(format, 10, 64); err == nil && v > uint64(pebble.FormatNewest) {
		return nil, fmt.Errorf("%w: Pebble's format %d, and this program reads up to %d", engine.ErrNewer, v, uint64(pebble.FormatNewest))
	}
	if in.past == nil {
		return nil, &damage{file: notesName, what: "the file is missing or empty"}
	}
	known := false
	if in.manifest, known = in.past.about(manifest); !known {
		return nil, &damage{file: notesName, what: "it does not know of " + manifest}
	}
	first, err := n.inspectManifest(manifest, in.manifest)
	if err != nil {
		return nil, err
	}
	return in, n.inspectLogs(in, first)
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

// unfinished returns nil if a directory without a marker for the MANIFEST holds nothing, or only
// what a creation leaves that was interrupted: the marker is placed before the first log is begun.
func unfinished(names []string, p *past) error {
	there := ""
	if p.whole() {
		there = notesName
	}
	for _, name := range names {
		if _, isLog := logNumber(name); isLog || strings.HasSuffix(name, ".sst") || strings.HasPrefix(name, "marker.") || name == spareName {
			there = name
		}
	}
	if there != "" {
		return &damage{file: "marker.manifest", what: "the file is missing, but there is " + there}
	}
	return nil
}

// ofPebble reports whether a file can be one of Pebble's.
func ofPebble(name string) bool {
	for _, prefix := range []string{"MANIFEST-", "OPTIONS-", "CURRENT", "LOCK", "marker."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{".log", ".sst", ".blob", ".dbtmp"}, filepath.Ext(name))
}

// inspectManifest checks the MANIFEST that counts and returns the number of
// the first log whose content is not in tables.
func (n *noted) inspectManifest(name string, said extent) (firstLog uint64, err error) {
	content, err := n.readAll(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, &damage{file: name, what: "the file is missing"}
	} else if err != nil {
		return 0, err
	}
	if int64(len(content)) < said.size {
		return 0, &damage{file: name, what: fmt.Sprintf("it has %d bytes, %d were durable", len(content), said.size)}
	}
	content = content[:said.size]
	if crc32.Checksum(content, castagnoli) != said.sum {
		return 0, &damage{file: name, what: fmt.Sprintf("the checksum of its first %d bytes does not match", said.size)}
	}
	n.prefixes = map[string]int64{name: said.size}
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

// Trace reports whether a file of a name tells that its directory has, or had, a store of Pebble. Other databases have
// files with some of these names too.
func Trace(name string) bool {
	return name == notesName || strings.HasPrefix(name, "marker.") || strings.HasPrefix(name, "MANIFEST-") ||
		strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".sst")
}
