package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
)

const resumeHelp = `Write a session back to where its agent finds it, and print the command that goes on
with it: for Claude Code, Codex CLI, Gemini CLI, Qwen Code, Copilot CLI and pi.

The transcript is the one that was imported, byte for byte. --cwd says where the project
is on this machine, if it is not where the transcript says; the lines name that directory
then. With --fork, with a fork of the session, or at a place (SESSION@REVISION or
SESSION:NODE), the transcript is the path to there, under a new id, so that the agent
keeps the other one.

A file that is there already is not overwritten, unless it is the beginning of what is
written.`

func (a *app) resume() *cobra.Command {
	var cwd string
	var fork bool
	c := &cobra.Command{
		Use:   "resume SESSION",
		Short: "Give a session back to the agent that wrote it",
		Long:  resumeHelp,
		Args:  cobra.ExactArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			return runResume(cmd, st, args[0], cwd, fork)
		}),
	}
	c.Flags().StringVar(&cwd, "cwd", "", "the directory of the project on this machine")
	c.Flags().BoolVar(&fork, "fork", false, "give the transcript a new id")
	a.complete(c)
	return c
}

func runResume(cmd *cobra.Command, st *turnstone.Store, name, cwd string, fork bool) error {
	ctx := cmd.Context()
	p, err := find(ctx, st, name)
	if err != nil {
		return err
	}
	info, err := p.Info(ctx)
	if err != nil {
		return err
	}
	// A fork has the labels of no import. It goes on from the session that has them.
	origin, forked := info, false
	for origin.Labels[importer.FormatLabel] == "" && origin.Parent != "" && !origin.Detached {
		parent, err := st.Session(ctx, origin.Parent)
		if err != nil {
			return err
		}
		if origin, err = parent.Info(ctx); err != nil {
			return err
		}
		forked = true
	}
	format := origin.Labels[importer.FormatLabel]
	if format == "" {
		return inputError{fmt.Errorf("%q was not imported from the transcript of an agent", name)}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	r := importer.Resumption{Cwd: origin.Cwd, Began: origin.HostCreated.UTC()}
	if cwd != "" {
		if r.Cwd, err = filepath.Abs(cwd); err != nil {
			return err
		}
	}
	fork = fork || forked || !p.bare
	var content bytes.Buffer
	if err := p.writeTranscript(cmd, fork, &content); err != nil {
		return err
	}
	r.Content = content.Bytes()
	_, id, _ := strings.Cut(origin.Labels[importer.IdentityLabel], ":")
	if err := importer.Resume(format, home, id, origin.Cwd, fork, &r); err != nil {
		return inputError{fmt.Errorf("%q: %w", name, err)}
	}
	if err := giveBack(&r); err != nil {
		return err
	}
	p2 := printer{w: cmd.OutOrStdout()}
	p2.printf("%s\n", clean(r.Path))
	if r.Cwd != "" {
		p2.printf("cd %s && ", clean(shellQuote(r.Cwd)))
	}
	words := make([]string, len(r.Command))
	for i, w := range r.Command {
		words[i] = shellQuote(w)
	}
	p2.printf("%s\n", clean(strings.Join(words, " ")))
	return p2.err
}

// writeTranscript writes the transcript of a place: the file that was imported, or the path to the place.
func (p *place) writeTranscript(cmd *cobra.Command, path bool, w *bytes.Buffer) error {
	if !path {
		state, part, err := exported(cmd.Context(), p.Session, false)
		if err != nil {
			return err
		}
		return importer.Write(w, state, part)
	}
	state, err := p.Load(cmd.Context(), p.scope)
	if err != nil {
		return err
	}
	onPath := map[graph.ID]bool{}
	for i := range state.Nodes {
		onPath[state.Nodes[i].ID] = true
	}
	whole := p.scope
	whole.Full, whole.Leaf = true, graph.ID{}
	all, err := p.Load(cmd.Context(), whole)
	if err != nil {
		return err
	}
	left := len(onPath)
	all.Nodes = slices.DeleteFunc(all.Nodes, func(n turnstone.Node) bool {
		if onPath[n.ID] {
			left--
			return false
		}
		// A header, and what else the agent noted before the end of the path.
		return left == 0 || n.Key != "" || n.Kind == importer.Unreadable || !importer.Beside(n.Kind, n.Payload)
	})
	return importer.Write(w, all, nil)
}

// giveBack writes a transcript, unless another one is at its path. It replaces a file at once, so that an agent
// never sees a part of it.
func giveBack(r *importer.Resumption) error {
	there, err := os.ReadFile(r.Path)
	switch {
	case err == nil && !bytes.HasPrefix(r.Content, there):
		return fmt.Errorf("%s: %w, and is not the beginning of the session: `turnstone import` it, or resume with --fork", r.Path, turnstone.ErrExists)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && len(there) == len(r.Content):
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(r.Path), ".turnstone-*")
	if err != nil {
		return err
	}
	_, err = f.Write(r.Content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), r.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
