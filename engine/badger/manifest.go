package badger

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
)

// The manifest lists the files of the store. It is a text file that is replaced as a
// whole:
//
//	turnstone badger 1
//	log 12 7306
//	run
//	table 9 8401233 1822 5f3ab601
//	table 10 8399871 1804 0c77d2e9
//	sum 9b1c22f0
//
// The line "log" has the number of the first log to replay, and the timestamp of the last
// group that is in tables. Runs are listed from the newest to the oldest, and tables in
// the order of their keys. A table has its number, its size, the size of its index and
// footer, and the checksum of these. The last line is the checksum of the lines before it.
type manifest struct {
	log     uint64 // number of the first log
	flushed uint64 // timestamp up to which groups are in tables
	runs    [][]tableInfo
}

const (
	manifestName  = "MANIFEST"
	manifestTemp  = "MANIFEST.tmp"
	manifestMagic = "turnstone badger 1\n"
)

// manifest returns the manifest for c.
func (c *content) manifest() *manifest {
	m := &manifest{log: c.memtables[0].log.number, flushed: c.flushed}
	for _, r := range c.runs {
		var infos []tableInfo
		for _, t := range r {
			infos = append(infos, t.tableInfo)
		}
		m.runs = append(m.runs, infos)
	}
	return m
}

func (m *manifest) encode() []byte {
	var b strings.Builder
	b.WriteString(manifestMagic)
	fmt.Fprintf(&b, "log %d %d\n", m.log, m.flushed)
	for _, r := range m.runs {
		b.WriteString("run\n")
		for _, t := range r {
			fmt.Fprintf(&b, "table %d %d %d %08x\n", t.number, t.size, t.tail, t.tailSum)
		}
	}
	s := b.String()
	return []byte(s + sumLine([]byte(s)))
}

// sumLine returns the last line of a manifest, which has the checksum of those before it.
func sumLine(lines []byte) string {
	return fmt.Sprintf("sum %08x\n", crc32.Checksum(lines, castagnoli))
}

// checkMagic checks how a file of this driver begins: with what it is and the version of its
// format. The file's checksum is right, so another version is no damage.
func checkMagic(data []byte, magic string) error {
	what := strings.TrimRight(magic, "0123456789\n")
	rest, ok := bytes.CutPrefix(data, []byte(what))
	if bytes.HasPrefix(data, []byte(magic)) {
		return nil
	}
	if version, _, _ := bytes.Cut(rest, []byte("\n")); ok {
		return fmt.Errorf("%w: it begins with %q", engine.ErrNewer, what+string(version))
	}
	return fmt.Errorf("%w: it begins in another way", engine.ErrCorrupt)
}

// decodeManifest decodes exactly what encode returns. Anything else is an error.
func decodeManifest(data []byte) (*manifest, error) {
	m := new(manifest)
	if sum := bytes.LastIndex(data, []byte("sum ")); sum < 0 || string(data[sum:]) != sumLine(data[:sum]) {
		return nil, fmt.Errorf("%w: its checksum is wrong", engine.ErrCorrupt)
	}
	if err := checkMagic(data, manifestMagic); err != nil {
		return nil, err
	}
	rest := string(data[len(manifestMagic):])
	for line := range strings.Lines(rest) {
		var t tableInfo
		switch word, fields, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); word {
		case "log":
			fmt.Sscanf(fields, "%d %d", &m.log, &m.flushed)
		case "run":
			m.runs = append(m.runs, nil)
		case "table":
			if len(m.runs) == 0 {
				return nil, fmt.Errorf("%w: a table without a run", engine.ErrCorrupt)
			}
			fmt.Sscanf(fields, "%d %d %d %x", &t.number, &t.size, &t.tail, &t.tailSum)
			last := &m.runs[len(m.runs)-1]
			*last = append(*last, t)
		}
	}
	// Fields that were not decoded make a difference here as well.
	if string(m.encode()) != string(data) {
		return nil, fmt.Errorf("%w: it is not what would have been written", engine.ErrCorrupt)
	}
	return m, nil
}

// readManifest reads the manifest. If there is none, the error matches fs.ErrNotExist.
func readManifest(d files) (*manifest, error) {
	f, err := d.open(manifestName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	m, err := decodeManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	return m, nil
}

// write replaces the manifest durably. If it fails and begun is true, the next Open may
// find either manifest.
func (m *manifest) write(d files) (begun bool, err error) {
	if err := removeAll(d, []string{manifestTemp}); err != nil {
		return false, err
	}
	f, err := d.create(manifestTemp)
	if err != nil {
		return false, err
	}
	_, err = f.WriteAt(m.encode(), 0)
	if err == nil {
		err = f.SyncData()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(err, d.remove(manifestTemp))
	}
	// The names of the files that the manifest lists must be durable first.
	if err := d.sync(); err != nil {
		return false, lost(err)
	}
	if err := d.rename(manifestTemp, manifestName); err != nil {
		return true, err
	}
	return true, lost(d.sync())
}
