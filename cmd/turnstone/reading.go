package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// A reading reads transcripts, one file after the other, so that it takes the memory of one, or of two that are not large:
// the next one is read while one is imported.
type reading struct {
	cmd      *cobra.Command
	as       string // the path that the only file is taken for, if set
	secrets  importer.Secrets
	files    []transcript
	waiting  []transcript // files that are put off
	done     int          // files that were read
	bad      []*importer.BadInput
	named    int // how many of bad are of files that the command line named
	progress *progressbar.ProgressBar
	found    []*importer.BadInput // in the file that was read last
	tails    *importer.Tails      // of files that were imported before; may be nil
	ahead    chan parsed          // what is in the file with the index done, if it is being read; it has room for one
	// read, if set, is called when a version of a file was imported, or holds nothing to import.
	read func(path string, version *importer.Seen, bad []*importer.BadInput)
}

// A parsed is what is in a file.
type parsed struct {
	convs []importer.Conversation
	bad   []*importer.BadInput
	err   error
}

// maxAhead is the size of the largest file that is read while another one is imported.
const maxAhead = 16 << 20

// A transcript is a file to read.
type transcript struct {
	importer.Source
	named bool // by the command line, not found in a folder
	again bool // it was put off until the other files are imported
	// has and wants are the identities of its conversations, and of those that they come from, of a file that was
	// put off.
	has, wants []string
}

// find finds the files that args name, and those below the folders that they name.
func (r *reading) find(args []string) error {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() { // an error is reported when the file is read
			for _, s := range importer.Look(r.cmd.Context(), arg) {
				r.files = append(r.files, transcript{Source: s, named: true})
			}
			continue
		}
		found, err := transcriptsBelow(r.cmd.Context(), arg, func(string) {})
		if err != nil {
			return err
		}
		for _, s := range found {
			r.files = append(r.files, transcript{Source: s})
		}
	}
	r.progress = bar(int64(len(r.files)), "importing", false)
	return nil
}

// transcriptsBelow returns the files below a folder that may be transcripts by their names, the sessions before
// their sub-agents. It calls each for every folder that has such files. It follows links to files, but not to
// folders, which may be above.
func transcriptsBelow(ctx context.Context, folder string, each func(folder string)) (all []importer.Source, err error) {
	if real, err := filepath.EvalSymlinks(folder); err == nil { // A walk does not follow a link, not even the first one.
		folder = real
	}
	err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path != folder:
			return nil // A folder that can't be read, or was removed meanwhile, has nothing to import.
		case err != nil:
			return err
		case d.IsDir():
			if importer.PartOfASession(path) || d.Name() == ".git" || d.Name() == "node_modules" {
				return fs.SkipDir
			}
			each(path)
		case !importer.MayBeTranscript(path):
		case d.Type().IsRegular():
			if path == folder { // a database
				each(filepath.Dir(path))
			}
			all = append(all, importer.Look(ctx, path)...)
		case d.Type()&fs.ModeSymlink != 0:
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				all = append(all, importer.Look(ctx, path)...)
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b importer.Source) int {
		depth := func(path string) int { return strings.Count(path, string(filepath.Separator)) }
		return cmp.Or(cmp.Compare(depth(a.Path), depth(b.Path)), cmp.Compare(a.Path, b.Path))
	})
	return all, err
}

// next reads files up to the first one that has conversations, and returns them. At the end it returns nil.
func (r *reading) next() ([]importer.Conversation, error) {
	for {
		if r.done == len(r.files) {
			r.files, r.waiting = append(r.files, originsFirst(r.waiting)...), nil
		}
		if r.done == len(r.files) {
			return nil, nil
		}
		f := r.files[r.done]
		if r.ahead == nil {
			r.readAhead(f)
		}
		file := <-r.ahead
		r.ahead = nil
		convs, bad := file.convs, file.bad
		if file.err != nil {
			return nil, r.interrupted(file.err)
		}
		if r.done++; r.done < len(r.files) && r.files[r.done].Version != nil && r.files[r.done].Size <= maxAhead {
			r.readAhead(r.files[r.done])
		}
		r.found = bad
		if r.progress != nil {
			r.progress.Add(1)
		}
		if !f.again {
			r.bad = append(r.bad, bad...)
		}
		if f.named {
			r.named += len(bad)
		}
		if len(convs) > 0 {
			return convs, nil
		}
		r.finished(&f)
	}
}

// readAhead begins to read a file.
func (r *reading) readAhead(f transcript) {
	ahead := make(chan parsed, 1)
	r.ahead = ahead
	go func() {
		var p parsed
		if r.tails != nil && f.Version != nil {
			p.convs, p.err = r.tails.Parse(r.cmd.Context(), f.Path)
		}
		if p.convs == nil && p.err == nil {
			p.convs, p.bad, p.err = r.parse(f.Path)
		}
		ahead <- p
	}()
}

// originsFirst orders files that were put off, so that what a conversation comes from is imported before it.
func originsFirst(files []transcript) []transcript {
	at := map[string]int{} // files by the identities that they have
	for i := range files {
		for _, id := range files[i].has {
			at[id] = i
		}
	}
	var out []transcript
	added := make([]bool, len(files))
	for i := range files {
		var line []int // each comes from the one behind it
		for !added[i] {
			added[i] = true
			line = append(line, i)
			for _, id := range files[i].wants {
				if j, ok := at[id]; ok && !added[j] {
					i = j
					break
				}
			}
		}
		for _, i := range slices.Backward(line) {
			out = append(out, files[i])
		}
	}
	return out
}

// finished says that the file that was read last is done.
func (r *reading) finished(f *transcript) {
	if r.read != nil && f.Version != nil {
		r.read(f.Path, f.Version, r.found)
	}
}

func (r *reading) interrupted(err error) error {
	return fmt.Errorf("%w: %d of %s are done; importing again does the rest", err, r.done, plural(len(r.files), "file"))
}

// parse reads a file, or standard input if its path is "-".
func (r *reading) parse(path string) ([]importer.Conversation, []*importer.BadInput, error) {
	if err := r.cmd.Context().Err(); err != nil {
		return nil, nil, err
	}
	in := r.cmd.InOrStdin()
	name := path
	switch {
	case importer.IsInDatabase(path):
		return importer.ParseDatabase(r.cmd.Context(), path, r.secrets)
	case path == "-":
		name = "stdin"
	default:
		in = &file{path: path}
	}
	data, err := importer.Read(r.cmd.Context(), in)
	if ctxErr := r.cmd.Context().Err(); ctxErr != nil {
		return nil, nil, ctxErr
	}
	if err != nil {
		return nil, []*importer.BadInput{{File: cmp.Or(r.as, name), Reason: reason(err)}}, nil
	}
	if r.tails != nil {
		return r.tails.ParseWhole(r.cmd.Context(), path, data, r.secrets)
	}
	return importer.Parse(r.cmd.Context(), cmp.Or(r.as, path), data, r.secrets)
}

// A file is opened when it is read first, because to open a named pipe may take for ever, and closed at its end.
type file struct {
	path string
	f    *os.File
	err  error // of the last read
}

func (f *file) Read(p []byte) (n int, err error) {
	if f.f == nil && f.err == nil {
		f.f, f.err = os.Open(f.path)
	}
	if f.err != nil {
		return 0, f.err
	}
	if n, f.err = f.f.Read(p); f.err != nil {
		f.err = cmp.Or(f.f.Close(), f.err)
	}
	return n, f.err
}

// load imports convs and all that next returns. A file whose conversations come from a session that is not there
// is put off, because another file may have that session.
func (r *reading) load(st *turnstone.Store, convs []importer.Conversation, o importer.Options) ([]importer.Result, error) {
	ctx := r.cmd.Context()
	var results []importer.Result
	var err error
	for ; convs != nil; convs, err = r.next() {
		f := r.files[r.done-1]
		if !f.again && f.Path != "-" && len(r.files) > 1 {
			if f.has, f.wants, err = importer.Origins(ctx, st, convs); err != nil && ctx.Err() == nil {
				return results, err
			}
			if len(f.wants) > 0 {
				f.again = true
				r.waiting = append(r.waiting, f)
				continue
			}
		}
		of := importer.Load(ctx, st, convs, o)
		if ctx.Err() != nil {
			r.done--
			return append(results, of...), r.interrupted(ctx.Err())
		}
		if !slices.ContainsFunc(of, func(r importer.Result) bool { return r.Err != nil }) {
			if len(r.found) == 0 && f.Version != nil {
				if err := f.Version.Note(ctx, st, of[len(of)-1].Session); err != nil {
					return results, err
				}
			}
			r.finished(&f)
		}
		if r.tails != nil {
			r.tails.Keep(of)
		}
		for i := range of {
			c := of[i].Conversation
			of[i].Conversation = &importer.Conversation{ID: c.ID, File: c.File, Format: c.Format, Mended: c.Mended, Redacted: c.Redacted}
		}
		results = append(results, of...)
	}
	return results, err
}

// failed returns an error if a file that the command line named can't be read, or a conversation was not imported.
func (r *reading) failed(results []importer.Result) error {
	var failed []error
	if err := failures(results); err != nil {
		failed = append(failed, err)
	}
	rest := "the rest was imported"
	if len(results) == 0 {
		rest = "so nothing was imported"
	}
	switch {
	case r.named > 0:
		failed = append(failed, fmt.Errorf("%s can't be read, %s", plural(r.named, "place"), rest))
	case len(results) == 0 && len(failed) == 0:
		failed = append(failed, errors.New("there is nothing to import"))
	}
	if len(failed) > 0 {
		return inputError{errors.Join(failed...)}
	}
	return nil
}

// failures returns the errors of conversations that were not imported.
func failures(results []importer.Result) error {
	var failed []error
	for i := range results {
		failed = append(failed, results[i].Err)
	}
	if err := errors.Join(failed...); err != nil {
		return inputError{err}
	}
	return nil
}

// reason returns why a file can't be read, without the name of the file.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// complain prints the places that can't be read. It lists the first few of each reason and counts the others.
func complain(cmd *cobra.Command, bad []*importer.BadInput) {
	const few = 5
	of, said := map[string]int{}, map[string]int{}
	for _, b := range bad {
		of[b.Reason]++
	}
	for _, b := range bad {
		switch said[b.Reason]++; {
		case said[b.Reason] <= few:
			fmt.Fprintln(cmd.ErrOrStderr(), clean(b.Error()))
		case said[b.Reason] == few+1:
			fmt.Fprintf(cmd.ErrOrStderr(), "and %d more like these\n", of[b.Reason]-few)
		}
	}
}
