package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
)

const resumeHelp = `Write a session back to where its agent finds it, and print the command that goes on
with it: for Claude Code, Codex CLI, Gemini CLI, Qwen Code, Copilot CLI and pi.

The transcript is the one that was imported, byte for byte. --cwd says where the project
is on this machine, if it is not where the transcript says; lines that name the project's
directory, or one below it, name that one then. With --fork, with a fork of the session,
or at a place (--at and --leaf, or SESSION@REVISION and SESSION:NODE), the transcript is the
path to there and what the agent noted beside it, under a new id, so that the agent keeps
the other one; and each line says from which session it was copied.

If the agent has a file of the session, that is what is written, and only if it is the
beginning of the transcript: then the rest is added. Sub-agents can't be resumed, and are
not written with the session that called them.`

func (a *app) resume() *cobra.Command {
	var cwd string
	var fork bool
	var at placeFlags
	c := &cobra.Command{
		Use:   "resume SESSION",
		Short: "Give a session back to the agent that wrote it",
		Long:  resumeHelp,
		Args:  cobra.ExactArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			return runResume(cmd, st, args[0], cwd, fork, &at)
		}),
	}
	c.Flags().StringVar(&cwd, "cwd", "", "the directory of the project on this machine")
	c.Flags().BoolVar(&fork, "fork", false, "give the transcript a new id")
	at.add(c, "give back the path")
	a.complete(c)
	return c
}

func runResume(cmd *cobra.Command, st *turnstone.Store, name, cwd string, fork bool, at *placeFlags) error {
	ctx := cmd.Context()
	p, err := find(ctx, st, name)
	if err != nil {
		return err
	}
	if p.scope, err = at.scope(ctx, p); err != nil {
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
	r := importer.Resumption{Began: origin.HostCreated, File: origin.Labels[importer.FileLabel]}
	if cwd != "" {
		if r.Cwd, err = filepath.Abs(cwd); err != nil {
			return err
		}
		if real, err := filepath.EvalSymlinks(r.Cwd); err == nil { // as the agent sees it
			r.Cwd = real
		}
	}
	fork = fork || forked || p.scope.At > 0 || !p.scope.Leaf.IsZero()
	var content bytes.Buffer
	if err := p.writeTranscript(cmd, fork, format, &content); err != nil {
		return err
	}
	r.Content = content.Bytes()
	id, named := strings.CutPrefix(origin.Labels[importer.IdentityLabel], format+":")
	if !named {
		id = ""
	}
	if strings.Contains(id, "/") && origin.Detached {
		return inputError{fmt.Errorf("%q is a sub-agent, which its agent can't resume: resume %q", name, origin.Parent)}
	}
	if err := importer.Resume(format, home, id, fork, &r); err != nil {
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

// writeTranscript writes the transcript of a place: the file that was imported, if it has the whole session, or the
// path to the place.
func (p *place) writeTranscript(cmd *cobra.Command, fork bool, format string, w *bytes.Buffer) error {
	ctx := cmd.Context()
	if !fork {
		state, part, err := exported(ctx, p.Session, false)
		if err != nil {
			return err
		}
		if importer.Complete(state, part) {
			return importer.Write(w, state, part)
		}
	}
	path, err := p.Load(ctx, p.scope)
	if err != nil {
		return err
	}
	scope := p.scope
	scope.Full, scope.Leaf = true, graph.ID{}
	all, err := p.Load(ctx, scope)
	if err != nil {
		return err
	}
	parts, err := p.Checkpoint(ctx, all.Revision)
	if err != nil {
		return err
	}
	return importer.WritePath(w, all.Nodes, path.Nodes, format, parts[importer.OutsidePart])
}

// giveBack writes a transcript. What the agent has already is only added to.
func giveBack(r *importer.Resumption) error {
	flags := os.O_WRONLY | os.O_APPEND
	info, err := os.Lstat(r.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		flags |= os.O_CREATE | os.O_EXCL
		err = os.MkdirAll(filepath.Dir(r.Path), 0o700)
	case err == nil && !info.Mode().IsRegular():
		return inputError{fmt.Errorf("%s is no regular file", r.Path)}
	}
	if err != nil {
		return err
	}
	var there []byte
	if flags&os.O_CREATE == 0 {
		if there, err = os.ReadFile(r.Path); err != nil {
			return err
		}
	}
	if !bytes.HasPrefix(r.Content, there) {
		return fmt.Errorf("%s: %w, and is not the beginning of the session: `turnstone import` it, or resume with --fork", r.Path, turnstone.ErrExists)
	}
	f, err := os.OpenFile(r.Path, flags, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(r.Content[len(there):])
	return errors.Join(err, f.Sync(), f.Close())
}
