package badger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// A store of a newer version of the driver is told from a damaged one, and left as it is.
func TestAStoreOfANewerDriverIsNoDamage(t *testing.T) {
	for what, change := range map[string]func(data []byte) []byte{
		"MANIFEST": func(data []byte) []byte {
			lines := bytes.Replace(data[:bytes.LastIndex(data, []byte("sum "))], []byte("badger 1\n"), []byte("badger 12\nsomething new\n"), 1)
			return append(lines, sumLine(lines)...)
		},
		"*.log": func(data []byte) []byte {
			copy(data, "turnstone log 2\n")
			binary.LittleEndian.PutUint32(data[logHeader-4:], crc32.Checksum(data[:logHeader-4], castagnoli))
			return data
		},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		e, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(filepath.Join(dir, what))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", what, names, err)
		}
		old, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		newer := change(bytes.Clone(old))
		if err := os.WriteFile(names[0], newer, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = Open(dir, nil)
		if !errors.Is(err, engine.ErrNewer) || errors.Is(err, engine.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if after, err := os.ReadFile(names[0]); err != nil || !bytes.Equal(after, newer) {
			t.Errorf("%s was changed: %v", what, err)
		}
		newer[len("turnstone b")] ^= 1 // without its checksum it is damage
		if err := os.WriteFile(names[0], newer, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err = Open(dir, nil); errors.Is(err, engine.ErrNewer) || !errors.Is(err, engine.ErrCorrupt) {
			t.Errorf("damaged %s: %v", what, err)
		}
		if err := os.WriteFile(names[0], old, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err = Open(dir, nil); err != nil {
			t.Fatalf("%s as it was: %v", what, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
