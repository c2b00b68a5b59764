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
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
)

// importHelp is the help of import.
const importHelp = `Import transcripts of agents. The command finds out the format of each file, which
may be compressed (.gz). The file - is standard input. It reads these formats:

  OpenAI-style chat JSON    {"messages": […]}, an array of messages, or one such object a line
  mini-swe-agent            trajectories, which are such chats
  Cline                     api_conversation_history.json and ui_messages.json
  tau-bench, tau2-bench     result files
  SWE-agent, SWE-smith      trajectories; per-step prompts become the checkpoint part "prompt"
  OpenHands                 output.jsonl, or an array of events
  pi                        session JSONL
  Claude Code               session JSONL, with rewinds, forks and sub-agents
  JSONL                     lines of role and content

Import a transcript again when it has grown: new messages are added to its session,
edited messages become a branch, and labels, names, kept revisions and forks stay. A
file that has fewer messages than the session changes nothing. Of several snapshots
of a conversation, the one with the most messages decides where the session goes on.
With --replace the session is deleted and imported anew instead.

A file belongs to the session of the same conversation. Conversations of Claude Code,
pi and tau2, and chats whose id is a UUID, are identified by their own ids. Others
are identified by the path of the file and their place in it, so two files with the
same name become two sessions. --as gives a path to standard input, or the old path
to a file that was moved.

Fields of a file outside its messages become the checkpoint parts import-outside and
import-shared. Short fields among them also become labels that begin with ".file.".
Commits have the times of the file, if it has any.

If input can't be read, the command prints file, line and reason, and imports nothing
of any file. With --skip-bad it imports what it can read. What an import that was cut
off has not stored, the next one does.`

// importFlags has the flags of import.
type importFlags struct {
	by, as, group                 string
	skipBad, dryRun, replace, yes bool
}

func (a *app) importFiles() *cobra.Command {
	var f importFlags
	c := &cobra.Command{
		Use:     "import FILE…",
		Short:   "Import transcripts of agents, or what is new in them",
		Long:    importHelp,
		Example: "turnstone import --dry-run chat.jsonl\nturnstone import chat.jsonl\nturnstone import chat.jsonl",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := f.check(files); err != nil {
				return err
			}
			convs, err := f.parse(cmd, files)
			if err != nil {
				return err
			}
			if f.dryRun {
				return report(cmd, wouldImport(convs), true)
			}
			clock := &importer.Clock{Present: a.options.Now}
			a.options.Now = clock.Now
			return a.withEngine(cmd.Context(), false, func(st *turnstone.Store, e engine.Engine) error {
				o := importer.Options{BySteps: f.by == "step", Group: f.group, Replace: f.replace, Clock: clock}
				if f.replace && !f.yes {
					var err error
					if o.Only, err = confirm(cmd, st, convs, files); err != nil {
						return err
					}
				}
				return load(cmd, st, e, convs, o)
			})
		},
	}
	c.Flags().StringVar(&f.by, "by", "turn", "what becomes a commit: turn (a user message and all up to the next one) or step (messages of the assistant and the results of its tools); each version of a checkpoint part gets a commit in any case")
	c.Flags().StringVar(&f.as, "as", "", "import the file as if it were at this path")
	c.Flags().StringVar(&f.group, "group", "", "the group of new sessions, names between slashes")
	c.Flags().BoolVar(&f.skipBad, "skip-bad", false, "import what can be read, although parts of files can't be")
	c.Flags().BoolVar(&f.replace, "replace", false, "delete the sessions of files that have changed, and import the files anew")
	c.Flags().BoolVar(&f.yes, "yes", false, "don't ask before --replace deletes sessions")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be imported, and write nothing")
	return c
}

// check refuses flags that don't go together.
func (f *importFlags) check(files []string) error {
	switch {
	case f.by != "turn" && f.by != "step":
		return usageError{fmt.Errorf("--by must be turn or step, not %q", f.by)}
	case f.as != "" && len(files) != 1:
		return usageError{errors.New("--as needs exactly one file")}
	case f.yes && !f.replace:
		return usageError{errors.New("--yes needs --replace")}
	}
	return nil
}

// parse reads the files. It prints what can't be read and fails then, unless --skip-bad
// is given.
func (f *importFlags) parse(cmd *cobra.Command, files []string) ([]importer.Conversation, error) {
	convs, bad := parse(cmd, files, f.as)
	if err := cmd.Context().Err(); err != nil {
		return nil, fmt.Errorf("%w while the files were read: nothing was imported", err)
	}
	complain(cmd, bad)
	if len(bad) > 0 && !f.skipBad {
		return nil, inputError{fmt.Errorf("%s can't be read, so nothing was imported (--skip-bad imports the rest)", plural(len(bad), "place"))}
	}
	if len(convs) == 0 {
		return nil, inputError{errors.New("there is nothing to import")}
	}
	return convs, nil
}

// confirm lists what --replace deletes, and asks whether to go on. It returns the Info.Incarnation of
// these sessions, or an error if the answer is no, or if there is no terminal to ask on.
func confirm(cmd *cobra.Command, st *turnstone.Store, convs []importer.Conversation, files []string) ([]string, error) {
	losses, err := importer.Losses(cmd.Context(), st, convs)
	sessions := []string{}
	if err != nil || len(losses) == 0 {
		return sessions, err
	}
	for i := range losses {
		sessions = append(sessions, losses[i].Incarnation)
		fmt.Fprintf(cmd.ErrOrStderr(), "deletes %s\n", lost(&losses[i]))
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || slices.Contains(files, "-") {
		return nil, usageError{fmt.Errorf("--replace deletes %s: confirm with --yes; without --replace, what is new is added", plural(len(losses), "session"))}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "delete %s and import anew? [y/N] ", plural(len(losses), "session"))
	yes, err := readYes(in)
	if err == nil && !yes {
		err = errors.New("nothing was imported")
	}
	return sessions, err
}

// readYes reads an answer and reports whether it is yes.
func readYes(in io.Reader) (bool, error) {
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// lost describes a session that --replace deletes.
func lost(l *importer.Loss) string {
	text := fmt.Sprintf("%s: %s of %s", line(l.ID, 60), plural(uint64(l.Revision), "revision"), plural(l.Nodes, "node"))
	if l.Name != "" {
		text += ", the name " + line(l.Name, 60)
	}
	if own := ownLabels(l.Labels); len(own) > 0 {
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

// ownLabels returns the labels that did not come from an import.
func ownLabels(all map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range all {
		if !strings.HasPrefix(key, ".import.") && !strings.HasPrefix(key, ".file.") && key != "import.identity" {
			own[key] = value
		}
	}
	return own
}

// parse reads all files. If as is set, there is one file, which is taken for the one at
// the path as.
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

// read reads a file, or stdin if name is "-".
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

// complain prints the places that can't be read. It lists the first few of each file
// and counts the others.
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

// reason returns why a file can't be read, without the name of the file.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// load imports conversations, prints a report, and compacts the store.
func load(cmd *cobra.Command, st *turnstone.Store, e engine.Engine, convs []importer.Conversation, o importer.Options) error {
	total := 0
	for i := range convs {
		total += convs[i].PayloadBytes()
	}
	progress := bar(int64(total), "importing", true)
	o.Progress = func(n int) { progress.Add(n) }
	results := importer.Load(cmd.Context(), st, convs, o)
	progress.Finish()
	if err := report(cmd, results, false); err != nil {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("%w: %d of %s are done; importing again does the rest", err, len(results), plural(len(convs), "conversation"))
	}
	if slices.ContainsFunc(results, func(r importer.Result) bool { return r.Commits > 0 }) {
		if err := compact(cmd.Context(), st, e); err != nil {
			return err
		}
	}
	var failed []error
	for _, r := range results {
		if r.Err != nil {
			failed = append(failed, r.Err)
		}
	}
	if len(failed) > 0 {
		return inputError{errors.Join(failed...)}
	}
	return nil
}

// compact makes few large segments of the many small commits of an import.
func compact(ctx context.Context, st *turnstone.Store, e engine.Engine) error {
	if err := st.Seal(ctx); err != nil {
		return err
	}
	return e.Vacuum(ctx)
}

// wouldImport returns the results of a dry run.
func wouldImport(convs []importer.Conversation) []importer.Result {
	var results []importer.Result
	for i := range convs {
		c := &convs[i]
		results = append(results, importer.Result{Conversation: c, Session: c.ID, Outcome: "would import", Nodes: len(c.Events), Bytes: c.PayloadBytes()})
	}
	return results
}

// A reportRow sums up the conversations of one file that had the same outcome.
type reportRow struct {
	file, format, outcome, session                string
	sessions, empty, commits, nodes, added, bytes int
}

func (w *reportRow) add(r *importer.Result) {
	if r.Nodes == 0 {
		w.empty++
	}
	w.sessions++
	w.commits += r.Commits
	w.nodes += r.Nodes
	w.added += r.Added
	w.bytes += r.Bytes
}

// report prints a row for each file and outcome, and a total if there are several rows.
func report(cmd *cobra.Command, results []importer.Result, dryRun bool) error {
	var t table
	t.row("FILE", "FORMAT", "OUTCOME", "SESSIONS", "EMPTY", "COMMITS", "NODES", "NEW", "PAYLOAD", "SESSION")
	for _, w := range reportRows(results) {
		commits, added := fmt.Sprint(w.commits), fmt.Sprint(w.added)
		if dryRun {
			commits, added = "-", "-"
		}
		t.row(line(w.file, 60), w.format, w.outcome, fmt.Sprint(w.sessions), fmt.Sprint(w.empty), commits, fmt.Sprint(w.nodes), added, size(uint64(w.bytes)), line(w.session, 60))
	}
	return t.write(cmd.OutOrStdout(), width(cmd.OutOrStdout()))
}

func reportRows(results []importer.Result) []*reportRow {
	var rows []*reportRow
	byKey := map[string]*reportRow{}
	total := &reportRow{file: "total"}
	for i := range results {
		r := &results[i]
		key := r.Conversation.File + "\x00" + string(r.Outcome)
		w := byKey[key]
		if w == nil {
			w = &reportRow{file: r.Conversation.File, format: r.Conversation.Format, outcome: string(r.Outcome), session: r.Session}
			rows, byKey[key] = append(rows, w), w
		} else {
			w.session = "" // the row has several sessions
		}
		w.add(r)
		total.add(r)
	}
	if len(rows) > 1 {
		rows = append(rows, total)
	}
	return rows
}
