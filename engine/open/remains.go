package open

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/turnstonedb/turnstone/engine"
)

// A Remaining is what can be read of a damaged database. It is for one goroutine.
type Remaining interface {
	engine.Scanner
	io.Closer
	// Lost says why the database does not open, and which files can't be read whole, as far as Scan has read them.
	Lost() []string
}

// Remains opens what can be read of the database that url names, and changes nothing there. A directory must not be in
// use. If its database opens for reading only, and the files of Badger's match their checksums, that is read; otherwise
// its tables and logs are: see pebble.Remains and badger.Remains.
func Remains(ctx context.Context, url string) (Remaining, error) {
	scheme, dir, local := Directory(url)
	if !local {
		e, err := Open(ctx, url, nil)
		if err != nil {
			return nil, err
		}
		return opensWhole{e}, nil
	}
	if err := refuse(dir, scheme); err != nil {
		return nil, err
	}
	e, err := Open(ctx, url, &Options{ReadOnly: true})
	if err == nil {
		if checks, ok := e.(interface{ VerifyFiles() error }); ok {
			err = checks.VerifyFiles()
		}
		if err == nil {
			return opensWhole{e}, nil
		}
		if err := e.Close(); err != nil {
			return nil, err
		}
	}
	switch {
	case errors.Is(err, engine.ErrLocked), errors.Is(err, engine.ErrNewer), errors.Is(err, engine.ErrMoved):
		return nil, err
	}
	if found, herr := Holds(dir); herr != nil || !found {
		return nil, errors.Join(err, herr, fmt.Errorf("no store in %s: %w", dir, fs.ErrNotExist))
	}
	of, _ := named(scheme)
	r, rerr := of.remains(dir)
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	return inPieces{r, err}, nil
}

// An inPieces is what remains of a database that does not open, or of which files are damaged.
type inPieces struct {
	Remaining
	why error
}

// Lost implements Remaining.
func (r inPieces) Lost() []string { return append([]string{r.why.Error()}, r.Remaining.Lost()...) }

// An opensWhole is an engine that opens.
type opensWhole struct{ engine.Engine }

// Lost implements Remaining.
func (opensWhole) Lost() []string { return nil }
