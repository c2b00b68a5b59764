package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
)

func (a *app) importFiles() *cobra.Command {
	var by string
	var skipBad, dryRun, replace bool
	c := &cobra.Command{
		Use:   "import FILE…",
		Short: "Import transcripts of agents",
		Long: `Import transcripts of agents; the format of each file (.gz too; - is standard
input) is found out:

  OpenAI-style chat JSON    {"messages": […]}, an array of messages, or one such object a line
  tau-bench, tau2-bench     result files
  SWE-agent, SWE-smith      trajectories; per-step prompts become the checkpoint part "prompt"
  OpenHands                 output.jsonl
  pi                        session JSONL
  Claude Code               session JSONL, with rewinds, forks and sub-agents
  JSONL                     lines of role and content

A conversation is imported whole or not at all. Importing the same file again
changes nothing; one whose session exists with other content is refused, unless
--replace is given. Input that can't be read is named with file, line and
reason, and nothing of any file is imported, unless --skip-bad is given: then
what can be read is. Sessions and commits get the time of the import; what a
transcript says of times stays in its payloads.`,
		Example: "turnstone import --dry-run chat.jsonl\nturnstone import chat.jsonl",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if by != "turn" && by != "step" {
				return usageError{fmt.Errorf("--by is turn or step, not %q", by)}
			}
			convs, bad := parse(files, cmd.InOrStdin())
			complain(cmd, bad)
			if len(bad) > 0 && !skipBad {
				return fmt.Errorf("%s can't be imported, and so nothing was (--skip-bad imports the rest)", plural(len(bad), "place"))
			}
			if len(convs) == 0 {
				return errors.New("there is nothing to import")
			}
			if dryRun {
				return report(cmd, nil, convs)
			}
			return a.withEngine(cmd.Context(), false, func(st *turnstone.Store, e engine.Engine) error {
				return load(cmd, st, e, convs, importer.Options{BySteps: by == "step", Replace: replace})
			})
		},
	}
	c.Flags().StringVar(&by, "by", "turn", "what becomes a commit: turn (a user message up to the next) or step (an assistant's burst with its tool results)")
	c.Flags().BoolVar(&skipBad, "skip-bad", false, "import what can be read of files with broken input")
	c.Flags().BoolVar(&replace, "replace", false, "import anew what exists with other content: a transcript that has grown")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be imported and write nothing")
	return c
}

// parse reads all files.
func parse(files []string, stdin io.Reader) (convs []importer.Conversation, bad []*importer.BadInput) {
	progress := bar(int64(len(files)), "reading", false)
	defer progress.Finish()
	seen := map[string]string{}
	for _, name := range files {
		data, err := read(name, stdin)
		if name == "-" {
			name = "stdin"
		}
		if err != nil {
			bad = append(bad, &importer.BadInput{File: name, Reason: reason(err)})
			continue
		}
		cs, bs := importer.Parse(name, data)
		bad = append(bad, bs...)
		for _, c := range cs {
			if other, twice := seen[c.ID]; twice {
				bad = append(bad, &importer.BadInput{File: name, Reason: fmt.Sprintf("conversation %q is in %s too: that one is taken", c.ID, other)})
				continue
			}
			seen[c.ID] = name
			convs = append(convs, c)
		}
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
	var failed []error
	imported := false
	for _, r := range results {
		imported = imported || r.Outcome == importer.Imported
		if r.Err != nil {
			failed = append(failed, r.Err)
		}
	}
	if imported { // many small commits become few large segments
		if err := compact(cmd.Context(), st, e); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

func compact(ctx context.Context, st *turnstone.Store, e engine.Engine) error {
	if err := st.Seal(ctx); err != nil {
		return err
	}
	return e.Vacuum(ctx)
}

// report prints a line per file.
func report(cmd *cobra.Command, results []importer.Result, convs []importer.Conversation) error {
	dry := results == nil
	if dry {
		for i := range convs {
			c := &convs[i]
			r := importer.Result{Conversation: c, Outcome: "would import", Nodes: len(c.Events)}
			for j := range c.Events {
				r.Bytes += len(c.Events[j].Payload)
			}
			results = append(results, r)
		}
	}
	type row struct {
		file, format, outcome                  string
		sessions, empty, commits, nodes, bytes int
	}
	var rows []*row
	at := map[string]*row{}
	for _, r := range results {
		key := r.Conversation.File + "\x00" + string(r.Outcome)
		w := at[key]
		if w == nil {
			w = &row{file: r.Conversation.File, format: r.Conversation.Format, outcome: string(r.Outcome)}
			rows, at[key] = append(rows, w), w
		}
		w.sessions++
		if r.Nodes == 0 {
			w.empty++
		}
		w.commits, w.nodes, w.bytes = w.commits+r.Commits, w.nodes+r.Nodes, w.bytes+r.Bytes
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	p := printer{w: t}
	p.printf("FILE\tFORMAT\tOUTCOME\tSESSIONS\tEMPTY\tCOMMITS\tNODES\tPAYLOAD\n")
	sum := row{}
	for _, w := range rows {
		commits := fmt.Sprint(w.commits)
		if dry {
			commits = "-"
		}
		p.printf("%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\n", line(w.file, 60), w.format, w.outcome, w.sessions, w.empty, commits, w.nodes, size(uint64(w.bytes)))
		sum.sessions, sum.empty, sum.commits = sum.sessions+w.sessions, sum.empty+w.empty, sum.commits+w.commits
		sum.nodes, sum.bytes = sum.nodes+w.nodes, sum.bytes+w.bytes
	}
	if len(rows) > 1 {
		p.printf("total\t\t\t%d\t%d\t%d\t%d\t%s\n", sum.sessions, sum.empty, sum.commits, sum.nodes, size(uint64(sum.bytes)))
	}
	return errors.Join(p.err, t.Flush())
}
