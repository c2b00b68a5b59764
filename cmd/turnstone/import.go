package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/importer"
)

func (a *app) importFiles() *cobra.Command {
	var by, as string
	var skipBad, dryRun, replace, yes bool
	c := &cobra.Command{
		Use:   "import FILE…",
		Short: "Import transcripts of agents, and what is new in them",
		Long: `Import transcripts of agents; the format of each file (.gz too; - is standard
input) is found out:

  OpenAI-style chat JSON    {"messages": […]}, an array of messages, or one such object a line
  mini-swe-agent            trajectories, which are such chats
  Cline                     api_conversation_history.json and ui_messages.json
  tau-bench, tau2-bench     result files
  SWE-agent, SWE-smith      trajectories; per-step prompts become the checkpoint part "prompt"
  OpenHands                 output.jsonl, or an array of events
  pi                        session JSONL
  Claude Code               session JSONL, with rewinds, forks and sub-agents
  JSONL                     lines of role and content

A transcript that has grown is imported again: what is new is added to its
session, what was edited becomes a branch, and labels, names, kept revisions and
forks stay. A file that has less than the session changes nothing, and of several
snapshots of a conversation the fullest decides where the session goes on.
--replace deletes the session and imports anew instead.

A file belongs to the session of the same conversation: by the conversation's own
id for Claude Code, pi and tau2, and for chats whose id is a UUID, else by the
path of the file and the place in it. Two files that are called the same become
two sessions. --as gives standard input a path, or a file that was moved its old
one.

What a file says outside its messages becomes the checkpoint parts import-outside
and import-shared, and short fields of it labels that begin with "file.". Commits
have the times of the file, where it has any.

A new conversation is imported whole or not at all. Input that can't be read is
named with file, line and reason, and nothing of any file is imported, unless
--skip-bad is given: then what can be read is.`,
		Example: "turnstone import --dry-run chat.jsonl\nturnstone import chat.jsonl\nturnstone import chat.jsonl",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			switch {
			case by != "turn" && by != "step":
				return usageError{fmt.Errorf("--by is turn or step, not %q", by)}
			case as != "" && len(files) != 1:
				return usageError{errors.New("--as goes with one file")}
			case yes && !replace:
				return usageError{errors.New("--yes goes with --replace")}
			}
			convs, bad := parse(cmd, files, as)
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("%w while the files were read: nothing was imported", err)
			}
			complain(cmd, bad)
			if len(bad) > 0 && !skipBad {
				return inputError{fmt.Errorf("%s can't be imported, and so nothing was (--skip-bad imports the rest)", plural(len(bad), "place"))}
			}
			if len(convs) == 0 {
				return inputError{errors.New("there is nothing to import")}
			}
			if dryRun {
				return report(cmd, nil, convs)
			}
			clock := &importer.Clock{Present: a.options.Now}
			a.options.Now = clock.Now
			return a.withEngine(cmd.Context(), false, func(st *turnstone.Store, e engine.Engine) error {
				if replace && !yes {
					if err := confirm(cmd, st, convs, files); err != nil {
						return err
					}
				}
				return load(cmd, st, e, convs, importer.Options{BySteps: by == "step", Replace: replace, Clock: clock})
			})
		},
	}
	c.Flags().StringVar(&by, "by", "turn", "what becomes a commit: turn (a user message up to the next) or step (an assistant's burst with its tool results); a version of a checkpoint part has one in any case")
	c.Flags().StringVar(&as, "as", "", "take the file for the one at this path")
	c.Flags().BoolVar(&skipBad, "skip-bad", false, "import what can be read of files with broken input")
	c.Flags().BoolVar(&replace, "replace", false, "delete the sessions of files that have changed, and import them anew")
	c.Flags().BoolVar(&yes, "yes", false, "with --replace: do not ask")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be imported and write nothing")
	return c
}

// confirm says what --replace deletes, and asks whether to.
func confirm(cmd *cobra.Command, st *turnstone.Store, convs []importer.Conversation, files []string) error {
	losses, err := importer.Losses(cmd.Context(), st, convs)
	if err != nil || len(losses) == 0 {
		return err
	}
	for i := range losses {
		fmt.Fprintf(cmd.ErrOrStderr(), "deletes %s\n", lost(&losses[i]))
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || slices.Contains(files, "-") {
		return usageError{fmt.Errorf("--replace deletes %s: say --yes; without --replace, what is new is added", plural(len(losses), "session"))}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "delete %s and import anew? [y/N] ", plural(len(losses), "session"))
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was imported")
	}
	return nil
}

// lost says what goes with a session that is deleted.
func lost(l *importer.Loss) string {
	text := fmt.Sprintf("%s: %s of %s", line(l.ID, 60), plural(uint64(l.Revision), "revision"), plural(l.Nodes, "node"))
	own := map[string]string{} // labels that somebody gave it
	for key, value := range l.Labels {
		if !strings.HasPrefix(key, "import.") && !strings.HasPrefix(key, "file.") {
			own[key] = value
		}
	}
	if l.Name != "" {
		text += ", the name " + line(l.Name, 60)
	}
	if len(own) > 0 {
		text += ", the labels " + line(labels(own), 200)
	}
	if l.Kept > 0 {
		text += ", " + plural(l.Kept, "kept revision")
	}
	if l.Children > 0 {
		text += ", the link to " + plural(l.Children, "session") + " that come from it, and stay"
	}
	return text
}

// parse reads all files, or the one as if it were called as.
func parse(cmd *cobra.Command, files []string, as string) (convs []importer.Conversation, bad []*importer.BadInput) {
	progress := bar(int64(len(files)), "reading", false)
	defer progress.Finish()
	for _, name := range files {
		if cmd.Context().Err() != nil {
			return nil, nil
		}
		data, err := read(name, cmd.InOrStdin())
		if as != "" {
			name = as
		}
		if err != nil {
			if name == "-" {
				name = "stdin"
			}
			bad = append(bad, &importer.BadInput{File: name, Reason: reason(err)})
			continue
		}
		cs, bs := importer.Parse(name, data)
		convs, bad = append(convs, cs...), append(bad, bs...)
		progress.Add(1)
	}
	return convs, bad
}

func read(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return importer.Read(stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return importer.Read(f)
}

// complain names the places that can't be read, of each file the first few.
func complain(cmd *cobra.Command, bad []*importer.BadInput) {
	const few = 5
	of := map[string]int{}
	for _, b := range bad {
		of[b.File]++
	}
	said := map[string]int{}
	for _, b := range bad {
		switch said[b.File]++; {
		case said[b.File] <= few:
			fmt.Fprintln(cmd.ErrOrStderr(), clean(b.Error()))
		case said[b.File] == few+1:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: and %d more like these\n", clean(b.File), of[b.File]-few)
		}
	}
}

// reason is what is wrong with a file, without its name.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

func load(cmd *cobra.Command, st *turnstone.Store, e engine.Engine, convs []importer.Conversation, o importer.Options) error {
	total := int64(0)
	for i := range convs {
		for j := range convs[i].Events {
			total += int64(len(convs[i].Events[j].Payload))
		}
	}
	progress := bar(total, "importing", true)
	o.Progress = func(n int) { progress.Add(n) }
	results := importer.Load(cmd.Context(), st, convs, o)
	progress.Finish()
	if err := report(cmd, results, convs); err != nil {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("%w: %d of %s are done; importing again does the rest", err, len(results), plural(len(convs), "conversation"))
	}
	var failed []error
	wrote := false
	for _, r := range results {
		wrote = wrote || r.Commits > 0
		if r.Err != nil {
			failed = append(failed, r.Err)
		}
	}
	if wrote { // many small commits become few large segments
		if err := compact(cmd.Context(), st, e); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return inputError{errors.Join(failed...)}
	}
	return nil
}

func compact(ctx context.Context, st *turnstone.Store, e engine.Engine) error {
	if err := st.Seal(ctx); err != nil {
		return err
	}
	return e.Vacuum(ctx)
}

// report prints a line per file and outcome; nil results are of a dry run.
func report(cmd *cobra.Command, results []importer.Result, convs []importer.Conversation) error {
	dry := results == nil
	if dry {
		for i := range convs {
			c := &convs[i]
			r := importer.Result{Conversation: c, Session: c.ID, Outcome: "would import", Nodes: len(c.Events)}
			for j := range c.Events {
				r.Bytes += len(c.Events[j].Payload)
			}
			results = append(results, r)
		}
	}
	type row struct {
		file, format, outcome, session                string
		sessions, empty, commits, nodes, added, bytes int
	}
	var rows []*row
	at := map[string]*row{}
	sum := &row{file: "total"}
	for _, r := range results {
		key := r.Conversation.File + "\x00" + string(r.Outcome)
		w := at[key]
		if w == nil {
			w = &row{file: r.Conversation.File, format: r.Conversation.Format, outcome: string(r.Outcome), session: r.Session}
			rows, at[key] = append(rows, w), w
		} else {
			w.session = "" // there are several
		}
		for _, w := range []*row{w, sum} {
			if r.Nodes == 0 {
				w.empty++
			}
			w.sessions, w.commits, w.nodes, w.added, w.bytes = w.sessions+1, w.commits+r.Commits, w.nodes+r.Nodes, w.added+r.Added, w.bytes+r.Bytes
		}
	}
	if len(rows) > 1 {
		rows = append(rows, sum)
	}
	var t table
	t.row("FILE", "FORMAT", "OUTCOME", "SESSIONS", "EMPTY", "COMMITS", "NODES", "NEW", "PAYLOAD", "SESSION")
	for _, w := range rows {
		commits, added := fmt.Sprint(w.commits), fmt.Sprint(w.added)
		if dry {
			commits, added = "-", "-"
		}
		t.row(line(w.file, 60), w.format, w.outcome, fmt.Sprint(w.sessions), fmt.Sprint(w.empty), commits, fmt.Sprint(w.nodes), added, size(uint64(w.bytes)), line(w.session, 60))
	}
	return t.write(cmd.OutOrStdout(), width(cmd.OutOrStdout()))
}
