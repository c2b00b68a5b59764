package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
)

// importHelp is the help of import. The formats stand between its halves.
const importHelp = `Import the transcripts in files, and in folders with all that is below them. The command
finds out the format of each file, which may be compressed (.gz). The file - is
standard input. It reads these formats:

%s
Import a transcript again when it has grown: new messages are added to its session,
edited messages become a branch, and labels, names that people gave, kept revisions
and forks stay. An earlier version of a file changes nothing. Of several versions of a
conversation, the one with the most messages decides where the session goes on. With
--replace the session is deleted and imported anew instead.

A file belongs to the session of the same conversation. The conversations of agents
that give them globally unique ids are identified by these, wherever their files are.
Others are identified by the path of the file and their place in it, so two files with
the same name become two sessions. --as gives a path to standard input, or the old path
to a file that was moved.

Broken files are mended, and the command says what it mended: torn and joined lines,
repeated ones, and parents that are not there, form a ring or are in another session.
Bytes that can't be read become nodes beside the path, so export gives the file back
byte for byte, if the file is one conversation; of results of benchmarks, export gives
their messages. The last line of a file that an agent is writing is imported when it is
whole.

Fields of an object that has a whole conversation, but its messages, become the
checkpoint parts import-outside and import-shared. Short fields among them also become
labels that begin with ".file.". Commits have the times of the file, if it has any.

A file that can't be read is named with the reason, and the others are imported. If it
was named on the command line, the exit code is 1. What an import that was cut off has
not stored, the next one does.`

// formatsHelp lists the formats for importHelp.
func formatsHelp() string {
	var out strings.Builder
	for _, f := range importer.Formats() {
		fmt.Fprintf(&out, "  %-17s %s\n", f[0], f[1])
	}
	return out.String()
}

// importFlags has the flags of import.
type importFlags struct {
	by, as, group                 string
	dryRun, replace, yes, asLines bool
	redact                        bool
}

func (a *app) importFiles() *cobra.Command {
	var f importFlags
	c := &cobra.Command{
		Use:     "import PATH…",
		Short:   "Import transcripts of agents, or what is new in them",
		Long:    fmt.Sprintf(importHelp, formatsHelp()),
		Example: "turnstone import --dry-run chat.jsonl\nturnstone import chat.jsonl\nturnstone import chat.jsonl --json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return err
			}
			return a.runImport(cmd, &f, args)
		},
	}
	c.Flags().StringVar(&f.by, "by", "turn", "what becomes a commit: turn (a user message and all up to the next one) or step (messages of the assistant and the results of its tools); each version of a checkpoint part gets a commit in any case")
	c.Flags().StringVar(&f.as, "as", "", "import the file as if it were at this path")
	c.Flags().StringVar(&f.group, "group", "", "the group of new sessions, names between slashes")
	c.Flags().BoolVar(&f.replace, "replace", false, "delete the sessions of files that have changed, and import the files anew")
	c.Flags().BoolVar(&f.yes, "yes", false, "don't ask before --replace deletes sessions")
	c.Flags().BoolVar(&f.redact, "redact", false, redactHelp)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be imported, and write nothing")
	jsonFlag(c, &f.asLines)
	return c
}

// runImport imports files and reports what became of them.
func (a *app) runImport(cmd *cobra.Command, f *importFlags, args []string) error {
	r := &reading{cmd: cmd, as: f.as, secrets: secrets(f.redact)}
	if err := r.find(args); err != nil {
		return err
	}
	defer r.progress.Finish()
	convs, err := r.next() // A store is not made before there is something to store.
	if err != nil {
		return err
	}
	var results []importer.Result
	if f.dryRun {
		for ; err == nil && convs != nil; convs, err = r.next() {
			results = append(results, wouldImport(convs)...)
		}
	} else if convs != nil {
		clock := &importer.Clock{Present: a.options.Now}
		a.options.Now = clock.Now
		err = a.withEngine(cmd.Context(), false, func(st *turnstone.Store, e engine.Engine) error {
			o := importer.Options{BySteps: f.by == "step", Group: f.group, Replace: f.replace, Clock: clock}
			if f.replace && !f.yes {
				if o.Only, err = confirm(cmd, st, f, args); err != nil {
					return err
				}
			}
			results, err = r.load(st, convs, o)
			if err == nil && slices.ContainsFunc(results, func(r importer.Result) bool { return r.Commits > 0 }) {
				err = compact(cmd.Context(), st, e)
			}
			return err
		})
	}
	r.progress.Finish()
	if results == nil && err != nil {
		return err
	}
	if f.asLines {
		err = errors.Join(err, reportJSON(cmd.OutOrStdout(), results, r.bad))
	} else {
		complain(cmd, r.bad)
		err = errors.Join(err, report(cmd, results, f.dryRun))
	}
	return errors.Join(err, r.failed(results))
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

// confirm lists what --replace deletes, and asks whether to go on. It returns the Info.Incarnation of
// these sessions, or an error if the answer is no, or if there is no terminal to ask on.
func confirm(cmd *cobra.Command, st *turnstone.Store, f *importFlags, args []string) (map[string]head.Revision, error) {
	r := &reading{cmd: cmd, as: f.as, secrets: secrets(f.redact)}
	if err := r.find(args); err != nil {
		return nil, err
	}
	var losses []importer.Loss
	sessions := map[string]head.Revision{}
	for {
		convs, err := r.next()
		if err != nil {
			return nil, err
		}
		if convs == nil {
			break
		}
		more, err := importer.Losses(cmd.Context(), st, convs)
		if err != nil {
			return nil, err
		}
		for _, l := range more {
			if !slices.ContainsFunc(losses, func(other importer.Loss) bool { return other.ID == l.ID }) {
				losses = append(losses, l)
			}
		}
	}
	if len(losses) == 0 {
		return sessions, nil
	}
	for i := range losses {
		sessions[losses[i].Incarnation] = losses[i].Revision
		fmt.Fprintf(cmd.ErrOrStderr(), "deletes %s\n", lost(&losses[i]))
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || slices.Contains(args, "-") {
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
