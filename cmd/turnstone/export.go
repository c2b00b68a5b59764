package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/importer"
)

// to calls f with a writer of the file called output, or of the command's output.
func to(cmd *cobra.Command, output string, f func(w io.Writer) error) (err error) {
	var w io.WriteCloser
	if output == "" {
		w = content(cmd.OutOrStdout())
	} else if w, err = os.Create(output); err != nil {
		return errors.New(err.Error()) // not that something in the store is not there
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return f(w)
}

func (a *app) export() *cobra.Command {
	var path bool
	var output string
	c := &cobra.Command{
		Use:   "export SESSION",
		Short: "Write a session's payloads as lines, byte for byte",
		Long: "Write a session's payloads, byte for byte. Of a session that was imported from JSON lines this is its file as\n" +
			"it was imported last, and behind it what was committed since. Of any other it is all nodes in the order of\n" +
			"commits, each on a line.",
		Example: "turnstone export trip/train --path",
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
			return to(cmd, output, func(w io.Writer) error { return importer.Write(w, state, part) })
		}),
	}
	c.Flags().BoolVar(&path, "path", false, "the active path only")
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file")
	a.complete(c)
	return c
}

// exported returns the nodes to export, and the part that says how they make up a file.
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
		Long: "Write an attachment, a checkpoint part or a payload, byte for byte. ID is the id of an attachment or part,\n" +
			"and with SESSION also the beginning of one, the name of a part, or a node. Without SESSION all sessions are\n" +
			"searched for the id.",
		Example: "turnstone cat trip plan\nturnstone cat trip plan --at 1\nturnstone cat trip msg_1",
		Args:    cobra.RangeArgs(1, 2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			ctx, name := cmd.Context(), args[len(args)-1]
			if len(args) == 2 {
				s, err := session(ctx, st, args[0])
				if err != nil {
					return err
				}
				f, err := thing(ctx, s, name, head.Revision(at))
				if err != nil {
					return err
				}
				return to(cmd, output, f)
			}
			if len(name) != 64 || !hexadecimal(name) {
				return usageError{fmt.Errorf("%q is no whole id: name the session, too", name)}
			}
			for i, err := range infos(ctx, st, turnstone.ListOptions{}) {
				if err != nil {
					return err
				}
				s, err := st.Session(ctx, i.ID)
				if errors.Is(err, turnstone.ErrSessionNotFound) {
					continue // deleted meanwhile
				}
				if err != nil {
					return err
				}
				f, err := thing(ctx, s, name, head.Revision(at))
				if slices.Contains([]string{"not_found", "pruned"}, turnstone.ErrorType(err)) {
					continue
				}
				if err != nil {
					return err
				}
				return to(cmd, output, f)
			}
			return fmt.Errorf("%w: no session has %q", turnstone.ErrBlobNotFound, name)
		}),
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file")
	c.Flags().Uint64Var(&at, "at", 0, "checkpoint parts as they were at this revision")
	a.complete(c)
	return c
}

// thing finds what name stands for in a session: the name of a checkpoint part,
// the key of a node, or the id of a part, an attachment or a node, or its
// beginning.
func thing(ctx context.Context, s *turnstone.Session, name string, at head.Revision) (func(io.Writer) error, error) {
	state, err := s.Load(ctx, turnstone.Scope{At: at, Full: true})
	if err != nil {
		return nil, err
	}
	found := map[string]func(io.Writer) error{} // by id
	prefix := hexadecimal(name)
	is := func(id fmt.Stringer) bool { return prefix && strings.HasPrefix(id.String(), strings.ToLower(name)) }
	for _, p := range state.Parts {
		write := func(w io.Writer) error {
			parts, err := s.Checkpoint(ctx, state.Revision)
			if err == nil {
				_, err = w.Write(parts[p.Name])
			}
			return err
		}
		if p.Name == name {
			return write, nil
		}
		if is(p.Blob) {
			found[p.Blob.String()] = write
		}
	}
	for _, n := range state.Nodes {
		write := func(w io.Writer) error {
			_, err := w.Write(n.Payload)
			return err
		}
		if n.Key != "" && n.Key == name {
			return write, nil
		}
		if is(n.ID) {
			found[n.ID.String()] = write
		}
		for _, at := range n.Attachments {
			if is(at.ID) {
				found[at.ID.String()] = func(w io.Writer) error {
					_, err := s.ReadAttachment(ctx, w, at.ID)
					return err
				}
			}
		}
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%w: %d ids in session %q begin with %q: give more of it", turnstone.ErrBlobNotFound, len(found), s.ID(), name)
	}
	for _, write := range found {
		return write, nil
	}
	return nil, fmt.Errorf("%w: session %q has no attachment, checkpoint part or node %q", turnstone.ErrBlobNotFound, s.ID(), name)
}
