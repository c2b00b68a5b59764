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
	return reportChanged(cmd.OutOrStdout(), results)
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

// reportChanged says what was mended and redacted in new or changed files.
func reportChanged(w io.Writer, results []importer.Result) error {
	p := printer{w: w}
	reportCounts(&p, "mended", results, func(c *importer.Conversation) map[importer.Mend]int { return c.Mended })
	reportCounts(&p, "redacted", results, func(c *importer.Conversation) map[string]int { return c.Redacted })
	return p.err
}

// reportCounts prints what was done in new or changed files: in each file if there are few, and in all of them
// otherwise.
func reportCounts[K ~string](p *printer, what string, results []importer.Result, of func(*importer.Conversation) map[K]int) {
	files, all := map[string]map[K]int{}, map[K]int{}
	for i := range results {
		c := results[i].Conversation
		for k, n := range of(c) {
			if results[i].Outcome == importer.Unchanged {
				continue
			}
			if files[c.File] == nil {
				files[c.File] = map[K]int{}
			}
			files[c.File][k] += n
			all[k] += n
		}
	}
	const few = 10
	if len(files) > few {
		p.printf("%s in %d files: %s\n", what, len(files), counts(all))
		return
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		p.printf("%s in %s: %s\n", what, line(file, 60), counts(files[file]))
	}
}

// counts lists what was counted, the most frequent first.
func counts[K ~string](all map[K]int) string {
	kinds := slices.SortedFunc(maps.Keys(all), func(a, b K) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) })
	var out []string
	for _, k := range kinds {
		out = append(out, fmt.Sprintf("%d × %s", all[k], k))
	}
	return strings.Join(out, ", ")
}

// An importLine is what became of a conversation, or of a place that can't be read, as JSON.
type importLine struct {
	File     string                `json:"file"`
	Line     int                   `json:"line,omitempty"` // of a place that can't be read
	Format   string                `json:"format,omitempty"`
	Session  string                `json:"session,omitempty"`
	Outcome  string                `json:"outcome"`
	Commits  int                   `json:"commits"`
	Nodes    int                   `json:"nodes"`
	New      int                   `json:"new"`
	Payload  int                   `json:"payload"` // bytes
	Mended   map[importer.Mend]int `json:"mended,omitempty"`
	Redacted map[string]int        `json:"redacted,omitempty"`
	Error    string                `json:"error,omitempty"`
}

// reportJSON prints a line for each conversation, and for each place that can't be read.
func reportJSON(w io.Writer, results []importer.Result, bad []*importer.BadInput) error {
	for i := range results {
		r := &results[i]
		l := importLine{
			File: r.Conversation.File, Format: r.Conversation.Format, Session: r.Session, Outcome: string(r.Outcome),
			Commits: r.Commits, Nodes: r.Nodes, New: r.Added, Payload: r.Bytes, Mended: r.Conversation.Mended, Redacted: r.Conversation.Redacted,
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
