package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// manyFiles is how many rows a report has with a row for each file. A longer one has a row for each format.
const manyFiles = 40

// A reportRow sums up the conversations of one file, or of one format, that had the same outcome.
type reportRow struct {
	file, format, outcome               string
	files, sessions                     map[string]bool
	empty, commits, nodes, added, bytes int
}

func newReportRow(file, format, outcome string) *reportRow {
	return &reportRow{file: file, format: format, outcome: outcome, files: map[string]bool{}, sessions: map[string]bool{}}
}

func (w *reportRow) add(r *importer.Result) {
	if r.Nodes == 0 {
		w.empty++
	}
	w.files[r.Conversation.File], w.sessions[r.Session] = true, true
	w.commits += r.Commits
	w.nodes += r.Nodes
	w.added += r.Added
	w.bytes += r.Bytes
}

// report prints a row for each file and outcome, and a total if there are several rows. Then it says what was
// mended.
func report(cmd *cobra.Command, results []importer.Result, dryRun bool) error {
	if len(results) == 0 {
		return nil
	}
	t := table{least: []string{"EMPTY", "COMMITS", "PAYLOAD", "FORMAT", "SESSIONS"}}
	t.row("FILE", "FORMAT", "OUTCOME", "SESSIONS", "EMPTY", "COMMITS", "NODES", "NEW", "PAYLOAD", "SESSION")
	for _, w := range reportRows(results) {
		commits, added, session := fmt.Sprint(w.commits), fmt.Sprint(w.added), ""
		if dryRun {
			commits, added = "-", "-"
		}
		if len(w.sessions) == 1 && w.format != "" {
			session = slices.Collect(maps.Keys(w.sessions))[0]
		}
		t.row(line(w.file, 60), w.format, w.outcome, fmt.Sprint(len(w.sessions)), fmt.Sprint(w.empty), commits, fmt.Sprint(w.nodes), added, size(uint64(w.bytes)), line(session, 60))
	}
	if err := t.write(cmd.OutOrStdout(), width(cmd.OutOrStdout())); err != nil {
		return err
	}
	return reportMended(cmd.OutOrStdout(), results)
}

// reportRows returns the rows of a report, and their total if there are several.
func reportRows(results []importer.Result) []*reportRow {
	files := map[string]bool{}
	for i := range results {
		files[results[i].Conversation.File+"\x00"+string(results[i].Outcome)] = true
	}
	var rows []*reportRow
	byKey := map[string]*reportRow{}
	total := newReportRow("total", "", "")
	for i := range results {
		r := &results[i]
		file := r.Conversation.File
		if len(files) > manyFiles {
			file = r.Conversation.Format
		}
		key := file + "\x00" + string(r.Outcome)
		w := byKey[key]
		if w == nil {
			w = newReportRow(file, r.Conversation.Format, string(r.Outcome))
			rows, byKey[key] = append(rows, w), w
		}
		w.add(r)
		total.add(r)
	}
	if len(files) > manyFiles {
		for _, w := range rows {
			w.file = plural(len(w.files), "file")
		}
		slices.SortFunc(rows, func(a, b *reportRow) int {
			return cmp.Or(cmp.Compare(a.format, b.format), cmp.Compare(a.outcome, b.outcome))
		})
	}
	if len(rows) > 1 {
		rows = append(rows, total)
	}
	return rows
}

// reportMended says what was mended in new or changed files: of each file if there are few, and of all of them
// otherwise.
func reportMended(w io.Writer, results []importer.Result) error {
	files := map[string]map[importer.Mend]int{}
	all := map[importer.Mend]int{}
	for i := range results {
		c := results[i].Conversation
		for m, n := range c.Mended {
			if results[i].Outcome == importer.Unchanged {
				continue
			}
			if files[c.File] == nil {
				files[c.File] = map[importer.Mend]int{}
			}
			files[c.File][m] += n
			all[m] += n
		}
	}
	const few = 10
	p := printer{w: w}
	if len(files) > few {
		p.printf("mended in %d files: %s\n", len(files), mends(all))
		return p.err
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		p.printf("mended in %s: %s\n", line(file, 60), mends(files[file]))
	}
	return p.err
}

// mends lists faults, the most frequent first.
func mends(all map[importer.Mend]int) string {
	kinds := slices.SortedFunc(maps.Keys(all), func(a, b importer.Mend) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) })
	var out []string
	for _, m := range kinds {
		out = append(out, fmt.Sprintf("%d × %s", all[m], m))
	}
	return strings.Join(out, ", ")
}

// An importLine is what became of a conversation, or of a place that can't be read, as JSON.
type importLine struct {
	File    string                `json:"file"`
	Line    int                   `json:"line,omitempty"` // of a place that can't be read
	Format  string                `json:"format,omitempty"`
	Session string                `json:"session,omitempty"`
	Outcome string                `json:"outcome"`
	Commits int                   `json:"commits"`
	Nodes   int                   `json:"nodes"`
	New     int                   `json:"new"`
	Payload int                   `json:"payload"` // bytes
	Mended  map[importer.Mend]int `json:"mended,omitempty"`
	Error   string                `json:"error,omitempty"`
}

// reportJSON prints a line for each conversation, and for each place that can't be read.
func reportJSON(w io.Writer, results []importer.Result, bad []*importer.BadInput) error {
	for i := range results {
		r := &results[i]
		l := importLine{
			File: r.Conversation.File, Format: r.Conversation.Format, Session: r.Session, Outcome: string(r.Outcome),
			Commits: r.Commits, Nodes: r.Nodes, New: r.Added, Payload: r.Bytes, Mended: r.Conversation.Mended,
		}
		if r.Err != nil {
			l.Error = r.Err.Error()
		}
		if err := asJSON(w, l); err != nil {
			return err
		}
	}
	for _, b := range bad {
		if err := asJSON(w, importLine{File: b.File, Line: b.Line, Outcome: "unreadable", Error: b.Reason}); err != nil {
			return err
		}
	}
	return nil
}
