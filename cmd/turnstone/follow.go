package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
)

const followHelp = `Import the sessions of the agents on this machine, and then what they write, within a
second. The command knows where Claude Code, Codex CLI, Gemini CLI, Qwen Code, Copilot
CLI, Cursor, OpenCode, Kimi, Droid, pi, OpenClaw, Cline and Roo Code keep them; FOLDER…
names others instead, or a database of OpenCode.

A file that has grown adds to its session, one that was rewritten becomes a branch of
it, and a deleted one stays in the store. The command may be stopped at any time, and
goes on where it stopped; it does not read again what the store has. It works beside
imports and other processes on the same store. A session that is deleted from the store
comes back when its file changes, or when the command starts, if the file has no other
session.

With --once the command ends when everything is imported, for example as a job of cron,
or as a hook of an agent. --print prints a unit of systemd, a property list of launchd, a
line for cron, or a hook for Claude Code's settings.json, to be saved by you.`

// followFlags has the flags of follow.
type followFlags struct {
	once   bool
	quiet  bool
	redact bool
	print  string
	poll   time.Duration
	group  string
}

func (a *app) follow() *cobra.Command {
	var f followFlags
	c := &cobra.Command{
		Use:   "follow [FOLDER…]",
		Short: "Keep the sessions of this machine's agents, as they write them",
		Long:  followHelp,
		RunE: func(cmd *cobra.Command, folders []string) error {
			if f.print != "" {
				return a.printUnit(cmd, &f, folders)
			}
			if f.poll < time.Second {
				return usageError{errors.New("--poll must be at least 1s")}
			}
			if _, err := homesOf(folders); err != nil && (f.once || len(folders) > 0) {
				return err
			}
			clock := &importer.Clock{Present: a.options.Now}
			a.options.Now = clock.Now
			return a.withEngine(cmd.Context(), false, func(st *turnstone.Store, e engine.Engine) error {
				w := follower{cmd: cmd, st: st, flags: &f, folders: folders, secrets: secrets(f.redact), options: importer.Options{Group: f.group, Clock: clock}, unread: map[string]unread{}, failed: map[string]string{}, unwatched: map[string]bool{}, followed: map[string]bool{}, beside: map[string][]string{}}
				err := w.run(cmd.Context())
				if errors.Is(err, context.Canceled) && !f.once {
					return nil // That is how it ends.
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&f.once, "once", false, "end when everything is imported")
	c.Flags().BoolVar(&f.quiet, "quiet", false, "don't print what is imported")
	c.Flags().BoolVar(&f.redact, "redact", false, redactHelp)
	c.Flags().StringVar(&f.print, "print", "", "print a unit that runs the command and end: systemd, launchd, cron or claude-code")
	c.Flags().DurationVar(&f.poll, "poll", 10*time.Second, "how often to look at all files, for changes that no notification told of")
	c.Flags().StringVar(&f.group, "group", "", "the group of new sessions, names between slashes")
	return c
}

// homesOf returns the folders that are named, or else those of the agents of this machine.
func homesOf(folders []string) ([]importer.Home, error) {
	if len(folders) == 0 {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		homes := importer.Homes(home)
		if len(homes) == 0 {
			return nil, inputError{errors.New("no agent that is known has sessions on this machine: name the folders to follow")}
		}
		return homes, nil
	}
	var homes []importer.Home
	for _, folder := range folders {
		if info, err := os.Stat(folder); err != nil || !info.IsDir() && !importer.IsDatabase(folder) {
			return nil, usageError{fmt.Errorf("%s is not a folder", folder)}
		}
		homes = append(homes, importer.Home{Folder: filepath.Clean(folder)})
	}
	return homes, nil
}

// A follower imports what agents write.
type follower struct {
	cmd       *cobra.Command
	st        *turnstone.Store
	flags     *followFlags
	secrets   importer.Secrets
	folders   []string // those that were named
	options   importer.Options
	seen      importer.SeenSet
	unread    map[string]unread // files that hold no conversation, or could not be read
	unwatched map[string]bool   // folders without notifications
	followed  map[string]bool   // watched folders: true if all in it is followed, false if only databases are
	failed    map[string]string // errors of conversations that could not be stored
	watcher   *fsnotify.Watcher
	tails     importer.Tails
	beside    map[string][]string // by watched folder: the sessions whose agent writes there, in other files than theirs
}

// unread is a version of a file that could not be read, and why.
type unread struct {
	version *importer.Seen
	reason  string
}

// settle is how long the follower waits after a notification, because a line is written in pieces.
const settle = 100 * time.Millisecond

// run imports everything, and then what changes until ctx ends.
func (w *follower) run(ctx context.Context) (err error) {
	if w.seen, err = importer.ReadSeen(ctx, w.st); err != nil {
		return err
	}
	if w.watcher, err = fsnotify.NewWatcher(); err != nil {
		fmt.Fprintf(w.cmd.ErrOrStderr(), "no notifications of the file system, so a change is seen within %v: %v\n", w.flags.poll, err)
	} else {
		defer w.watcher.Close()
	}
	if err := w.pass(ctx); err != nil || w.flags.once {
		return err
	}
	return w.changes(ctx)
}

// changes imports what changes until ctx ends.
func (w *follower) changes(ctx context.Context) error {
	var events chan fsnotify.Event
	var failures chan error
	if w.watcher != nil {
		events, failures = w.watcher.Events, w.watcher.Errors
	}
	poll := time.NewTicker(w.flags.poll)
	defer poll.Stop()
	changed := map[string]bool{}
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Chmod) && !e.Has(fsnotify.Write) {
				continue
			}
			// SQLite writes what is new to a file beside the database.
			if changed[strings.TrimSuffix(e.Name, "-wal")] = true; settled == nil {
				settled = time.After(settle)
			}
		case err := <-failures: // Notifications were lost.
			fmt.Fprintf(w.cmd.ErrOrStderr(), "notifications were lost, so all files are looked at: %v\n", err)
			if err := w.pass(ctx); err != nil {
				return err
			}
		case <-settled:
			settled = nil
			files := w.below(ctx, changed)
			clear(changed)
			if err := w.bring(ctx, files, false); err != nil {
				return err
			}
		case <-poll.C:
			if err := w.pass(ctx); err != nil {
				return err
			}
		}
	}
}

// pass looks at all files and imports those that have changed.
func (w *follower) pass(ctx context.Context) error {
	var files []importer.Source
	homes, err := homesOf(w.folders)
	if err != nil && w.flags.once {
		return err
	}
	for _, h := range homes { // An agent may be used for the first time while they are followed.
		files = append(files, w.walk(ctx, h.Folder)...)
	}
	return w.bring(ctx, files, true)
}

// walk returns the transcripts below a folder, and watches the folders. The sessions come before their sub-agents.
func (w *follower) walk(ctx context.Context, folder string) []importer.Source {
	found, _ := transcriptsBelow(ctx, folder, func(dir string) {
		w.followed[dir] = w.followed[dir] || !importer.IsDatabase(folder)
		w.watch(dir)
	})
	for _, s := range found {
		w.watchBeside(s)
	}
	return found
}

// watch watches a folder.
func (w *follower) watch(dir string) {
	if w.watcher == nil || w.flags.once {
		return
	}
	if err := w.watcher.Add(dir); err != nil && !w.unwatched[dir] {
		w.unwatched[dir] = true
		fmt.Fprintf(w.cmd.ErrOrStderr(), "no notifications of %s, so a change is seen within %v: %v\n", clean(dir), w.flags.poll, err)
	}
}

// watchBeside watches the folders of Source.Beside, and no longer those that it had before. It reports whether it
// watches one that was not watched before.
func (w *follower) watchBeside(s importer.Source) (more bool) {
	for dir, sessions := range w.beside {
		if !slices.Contains(sessions, s.Path) || slices.Contains(s.Beside, dir) {
			continue
		}
		if w.beside[dir] = slices.DeleteFunc(sessions, func(path string) bool { return path == s.Path }); len(w.beside[dir]) == 0 {
			delete(w.beside, dir)
			if w.watcher != nil && !w.followed[dir] {
				_ = w.watcher.Remove(dir) // It may be gone.
			}
		}
	}
	for _, dir := range s.Beside {
		if !slices.Contains(w.beside[dir], s.Path) {
			w.beside[dir] = append(w.beside[dir], s.Path)
			w.watch(dir)
			more = true
		}
	}
	return more
}

// below returns the transcripts among the paths, and those in new folders among them.
func (w *follower) below(ctx context.Context, changed map[string]bool) []importer.Source {
	var files []importer.Source
	look := func(path string) {
		found := importer.Look(ctx, path)
		if slices.ContainsFunc(found, w.watchBeside) {
			found = importer.Look(ctx, path) // It may have changed before it was watched.
		}
		files = append(files, found...)
	}
	for path := range maps.Clone(changed) {
		for _, session := range w.beside[filepath.Dir(path)] {
			changed[session] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(changed)) {
		switch info, err := os.Lstat(path); {
		case err != nil: // It is gone.
		case !w.followed[filepath.Dir(path)] && !importer.IsDatabase(path):
		case info.IsDir():
			files = append(files, w.walk(ctx, path)...)
		case info.Mode().IsRegular() && importer.MayBeTranscript(path):
			look(path)
		}
	}
	return files
}

// bring imports those of the files that the store does not have as they are now.
func (w *follower) bring(ctx context.Context, files []importer.Source, all bool) error {
	r := &reading{cmd: w.cmd, secrets: w.secrets, read: w.note}
	if !w.flags.once {
		r.tails = &w.tails
	}
	for _, s := range files {
		if s.Version != nil && !w.known(s) {
			r.files = append(r.files, transcript{Source: s})
		}
	}
	if len(r.files) == 0 {
		return ctx.Err()
	}
	if all {
		r.progress = bar(int64(len(r.files)), "importing", false)
		defer r.progress.Finish()
	}
	convs, err := r.next()
	if err != nil {
		return err
	}
	results, err := r.load(w.st, convs, w.options)
	if w.say(results); !w.flags.quiet {
		complain(w.cmd, r.bad)
	}
	if w.flags.once && err == nil {
		err = failures(results)
	}
	return err
}

// known reports whether the store has a version of a file, or the file could not be read.
func (w *follower) known(s importer.Source) bool {
	u, ok := w.unread[s.Path]
	return w.seen[*s.Version] || ok && *u.version == *s.Version
}

// note notes that a version of a file was read and imported, or could not be read.
func (w *follower) note(path string, version *importer.Seen, bad []*importer.BadInput) {
	delete(w.unread, path)
	if slices.ContainsFunc(bad, func(b *importer.BadInput) bool { return b.Again }) {
		return
	}
	if len(bad) > 0 {
		w.unread[path] = unread{version, bad[0].Reason}
		return
	}
	w.seen[*version] = true
}

// say prints what was imported.
func (w *follower) say(results []importer.Result) {
	for i := range results {
		r := &results[i]
		switch {
		case r.Err != nil: // It is tried again, but said once.
			if w.failed[r.Conversation.ID] != r.Err.Error() {
				w.failed[r.Conversation.ID] = r.Err.Error()
				fmt.Fprintln(w.cmd.ErrOrStderr(), clean(r.Err.Error()))
			}
		case r.Outcome != importer.Unchanged && !w.flags.quiet:
			p := printer{w: w.cmd.OutOrStdout()}
			redacted := ""
			if n := counts(r.Conversation.Redacted); n != "" {
				redacted = "; redacted " + n
			}
			p.printf("%s %s %s: %s new%s\n", r.Conversation.Format, r.Outcome, line(cmp.Or(r.Session, r.Conversation.ID), 60), plural(r.Added, "node"), redacted)
		}
	}
}
