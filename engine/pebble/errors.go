package pebble

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// A damage is an error that matches engine.ErrCorrupt. Its text names the file
// and never shows keys or values, as the texts of Pebble's errors may do.
type damage struct {
	file  string
	what  string
	cause error // Pebble's own error, or nil
}

func (d *damage) Error() string { return fmt.Sprintf("%v: %s: %s", engine.ErrCorrupt, d.file, d.what) }

// Is reports whether target is engine.ErrCorrupt.
func (d *damage) Is(target error) bool { return target == engine.ErrCorrupt }

// Unwrap returns the error of Pebble that was found beneath.
func (d *damage) Unwrap() error { return d.cause }

// mapped gives the errors of Pebble and of the file system the engine's names.
// Only a checksum or a broken format is damage; a read that fails is not.
func mapped(err error) error {
	var d *damage
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &d):
		return d
	case localdir.Short(err):
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	case pebble.IsCorruptionError(err):
		return &damage{file: fileOf(err), what: "Pebble finds it damaged", cause: err}
	case errors.Is(err, pebble.ErrClosed), errors.Is(err, os.ErrClosed):
		return engine.ErrClosed
	}
	return err
}

// mappedOpen is mapped for errors of pebble.Open, which gives most of them no
// type. An error that is no system call's, or says that a file is missing, means
// that the files do not fit together.
func mappedOpen(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT {
		return mapped(err)
	}
	var d *damage
	if errors.As(err, &d) {
		return d
	}
	what := "Pebble can't open the store with it"
	if errno == syscall.ENOENT {
		what = "the file is missing"
	}
	return &damage{file: fileOf(err), what: what, cause: err}
}

// storeFile matches the names of Pebble's files in the texts of its errors.
var storeFile = regexp.MustCompile(`\b(\d{6,}\.(sst|log|blob)|(MANIFEST|OPTIONS)-\d{6,}|marker\.[a-z-]+\.\d+\.[A-Za-z0-9-]+)\b`)

// tableNumber matches how Pebble names a table where it compares the MANIFEST
// with the directory.
var tableNumber = regexp.MustCompile(`\bL\d: (\d{6,})\b`)

// fileOf returns the name of the file that err is about, as far as Pebble says.
func fileOf(err error) string {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil && info.Path != "" {
		return filepath.Base(info.Path)
	}
	text := err.Error()
	if name := storeFile.FindString(text); name != "" {
		return name
	}
	if m := tableNumber.FindStringSubmatch(text); m != nil {
		return m[1] + ".sst"
	}
	return "a file of the store"
}
