package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
)

// to calls write with a writer of the file called output, or of the command's output if output is empty. The file is
// written under another name first: if write fails, there is none, or the one that was there before.
func to(cmd *cobra.Command, output string, write content) (err error) {
	if output == "" {
		w := contentWriter(cmd.OutOrStdout())
		defer func() { err = errors.Join(err, w.Close()) }()
		return write(w)
	}
	f, end, err := outputFile(output)
	if err != nil {
		return errors.New(err.Error()) // hide fs.ErrNotExist: nothing is missing in the store
	}
	return end(write(f))
}

// outputFile returns a file to write to, and what ends it: with no error the file becomes the one called path, and with
// one it is removed. What is at path and no regular file, such as /dev/null or a pipe, is written to itself.
func outputFile(path string) (f *os.File, end func(error) error, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if i, err := os.Stat(path); err == nil && !i.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		return f, func(err error) error { return errors.Join(err, f.Close()) }, err
	}
	f, err = os.OpenFile(path+".new-"+rand.Text()[:8], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	return f, func(err error) error {
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
		return err
	}, err
}

func (a *app) export() *cobra.Command {
	var path bool
	var output, attachments string
	c := &cobra.Command{
		Use:   "export SESSION",
		Short: "Write a session's payloads as lines, byte for byte",
		Long: "Write a session's payloads, byte for byte. For a session that was imported from JSON lines, write the file as\n" +
			"it was imported last, and then the payloads that were committed since. For any other session, write the\n" +
			"payloads of all nodes in the order of commits, each on a line.\n\n" +
			"With --attachments DIR, write each attachment of these nodes to DIR, as a file that has its id as name, and what\n" +
			"is known of them to DIR/attachments.jsonl: a line for each node that refers to one.",
		Example: "turnstone export trip/train --path\nturnstone export trip -o trip.jsonl --attachments trip.files",
		Args:    cobra.ExactArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			s, err := session(cmd.Context(), st, args[0])
			if err != nil {
				return err
			}
			state, part, err := exported(cmd.Context(), s, path)
			if err != nil {
				return err
			}
			if attachments != "" {
				if err := exportAttachments(cmd, s, state, attachments); err != nil {
					return err
				}
			}
			return to(cmd, output, func(w io.Writer) error { return importer.Write(w, state, part) })
		}),
	}
	c.Flags().BoolVar(&path, "path", false, "write the active path only")
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file")
	c.Flags().StringVar(&attachments, "attachments", "", "write the attachments to this directory")
	a.complete(c)
	return c
}

// exportAttachments writes the attachments of nodes to a directory. Their names are the host's, and hostile: files are
// called by ids.
func exportAttachments(cmd *cobra.Command, s *turnstone.Session, state *turnstone.State, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return errors.New(err.Error())
	}
	written := map[blob.ID]bool{}
	return to(cmd, filepath.Join(dir, "attachments.jsonl"), func(index io.Writer) error {
		lines := json.NewEncoder(index)
		lines.SetEscapeHTML(false)
		for _, n := range state.Nodes {
			for _, a := range n.Attachments {
				if err := lines.Encode(turnstone.Attached{Attachment: a, Node: n.ID, Revision: n.Revision, Inherited: n.Inherited, Time: n.Time}); err != nil {
					return err
				}
				if written[a.ID] {
					continue
				}
				written[a.ID] = true
				if err := to(cmd, filepath.Join(dir, a.ID.String()), func(w io.Writer) error {
					_, err := s.ReadAttachment(cmd.Context(), w, a.ID)
					return err
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// exported returns the nodes to export, and the checkpoint part that says how they make
// up a file, if the session was imported from one.
func exported(ctx context.Context, s *turnstone.Session, path bool) (*turnstone.State, []byte, error) {
	state, err := s.Load(ctx, turnstone.Scope{Full: !path})
	if err != nil || path {
		return state, nil, err
	}
	if !slices.ContainsFunc(state.Parts, func(p head.Part) bool { return p.Name == importer.LayoutPart }) {
		return state, nil, nil
	}
	parts, err := s.Checkpoint(ctx, state.Revision)
	return state, parts[importer.LayoutPart], err
}

func (a *app) cat() *cobra.Command {
	var output string
	var at uint64
	c := &cobra.Command{
		Use:   "cat [SESSION] ID",
		Short: "Write an attachment, a checkpoint part or a payload, byte for byte",
		Long: "Write an attachment, a checkpoint part or a payload, byte for byte. ID is the id of an attachment or part.\n" +
			"With SESSION it may also be the beginning of an id, the name of a part, or a node. Without SESSION, the command\n" +
			"searches all sessions for the id.",
		Example: "turnstone cat trip plan\nturnstone cat trip plan --at 1\nturnstone cat trip msg_1",
		Args:    cobra.RangeArgs(1, 2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			write, err := catContent(cmd.Context(), st, args, head.Revision(at))
			if err != nil {
				return err
			}
			return to(cmd, output, write)
		}),
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file")
	c.Flags().Uint64Var(&at, "at", 0, "take checkpoint parts from this revision")
	a.complete(c)
	return c
}

// catContent finds what args name: [SESSION] ID.
func catContent(ctx context.Context, st *turnstone.Store, args []string, at head.Revision) (content, error) {
	if len(args) == 1 {
		return findContent(ctx, st, args[0], at)
	}
	s, err := session(ctx, st, args[0])
	if err != nil {
		return nil, err
	}
	return sessionContent(ctx, s, args[1], at)
}

// findContent looks in all sessions for the content with the given id.
func findContent(ctx context.Context, st *turnstone.Store, id string, at head.Revision) (content, error) {
	if len(id) != 64 || !mayBeginID(id) {
		return nil, usageError{fmt.Errorf("%q is not a whole id: give the session as well", id)}
	}
	for i, err := range importer.Sessions(ctx, st, turnstone.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		s, err := st.Session(ctx, i.ID)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue // the session was deleted after it was listed
		}
		if err != nil {
			return nil, err
		}
		found, err := sessionContent(ctx, s, id, at)
		switch turnstone.KindOf(err).Status {
		case http.StatusNotFound, http.StatusGone:
			continue
		}
		return found, err
	}
	return nil, fmt.Errorf("%w: no session has %q", turnstone.ErrBlobNotFound, id)
}

// content writes an attachment, a checkpoint part or a payload.
type content func(io.Writer) error

// bytesContent returns content that is in memory.
func bytesContent(b []byte) content {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// sessionContent finds the content that name stands for in a session. The name of a
// checkpoint part and the key of a node come first. Otherwise name is the id of a
// part, a node or an attachment, or the beginning of one.
func sessionContent(ctx context.Context, s *turnstone.Session, name string, at head.Revision) (content, error) {
	state, err := s.Load(ctx, turnstone.Scope{At: at, Full: true})
	if err != nil {
		return nil, err
	}
	for _, p := range state.Parts {
		if p.Name == name {
			return partContent(ctx, s, state.Revision, name), nil
		}
	}
	for _, n := range state.Nodes {
		if n.Key != "" && n.Key == name {
			return bytesContent(n.Payload), nil
		}
	}
	found := contentsByID(ctx, s, state, name)
	if len(found) > 1 {
		return nil, fmt.Errorf("%w: %d ids in session %q begin with %q: give a longer beginning", turnstone.ErrBlobNotFound, len(found), s.ID(), name)
	}
	for _, c := range found {
		return c, nil
	}
	return nil, fmt.Errorf("%w: session %q has no attachment, checkpoint part or node %q", turnstone.ErrBlobNotFound, s.ID(), name)
}

// contentsByID returns the contents of a session whose ids begin with prefix.
func contentsByID(ctx context.Context, s *turnstone.Session, state *turnstone.State, prefix string) map[string]content {
	found := map[string]content{}
	if !mayBeginID(prefix) {
		return found
	}
	add := func(id fmt.Stringer, c content) {
		if strings.HasPrefix(id.String(), strings.ToLower(prefix)) {
			found[id.String()] = c
		}
	}
	for _, p := range state.Parts {
		add(p.Blob, partContent(ctx, s, state.Revision, p.Name))
	}
	for _, n := range state.Nodes {
		add(n.ID, bytesContent(n.Payload))
		for _, at := range n.Attachments {
			add(at.ID, func(w io.Writer) error {
				_, err := s.ReadAttachment(ctx, w, at.ID)
				return err
			})
		}
	}
	return found
}

// partContent returns the content of a checkpoint part at a revision.
func partContent(ctx context.Context, s *turnstone.Session, at head.Revision, name string) content {
	return func(w io.Writer) error {
		parts, err := s.Checkpoint(ctx, at)
		if err == nil {
			_, err = w.Write(parts[name])
		}
		return err
	}
}
