package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Results of a run.
type Results struct {
	Machine Machine  `json:"machine"`
	Quick   bool     `json:"quick"`
	Rounds  int      `json:"rounds"`
	Corpus  bool     `json:"corpus"` // the input came from real transcripts
	Scale   Scale    `json:"scale"`
	Minutes float64  `json:"minutes"`
	Cells   []Result `json:"cells"`
}

// A Result is what one cell measured.
type Result struct {
	Workload   string  `json:"workload"`
	Contestant string  `json:"contestant"`
	Round      int     `json:"round"`
	Seconds    float64 `json:"seconds"`
	Error      string  `json:"error,omitempty"`
	Metrics    Metrics `json:"metrics,omitempty"`
}

// A Value is the median of the rounds, with the least and the greatest.
type Value struct{ Median, Min, Max float64 }

func (r *Results) value(workload, contestant, metric string) (v Value, ok bool) {
	var all []float64
	for _, c := range r.Cells {
		if c.Workload == workload && c.Contestant == contestant {
			if m, ok := c.Metrics[metric]; ok {
				all = append(all, m)
			}
		}
	}
	if len(all) == 0 {
		return v, false
	}
	slices.Sort(all)
	mid := all[len(all)/2]
	if len(all)%2 == 0 {
		mid = (mid + all[len(all)/2-1]) / 2
	}
	return Value{mid, all[0], all[len(all)-1]}, true
}

// A column of a table.
type column struct {
	title  string
	metric string
	format func(float64) string
}

// A table is what is shown of a workload.
type table struct {
	workload string
	columns  []column
	note     string
}

func count(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// duration of microseconds.
func duration(v float64) string {
	switch {
	case v < 1000:
		return fmt.Sprintf("%.3g µs", v)
	case v < 1e6:
		return fmt.Sprintf("%.3g ms", v/1000)
	}
	return fmt.Sprintf("%.3g s", v/1e6)
}

func times(v float64) string { return fmt.Sprintf("%.2f×", v) }

func size(v float64) string { return fmt.Sprintf("%.2f MB", v/1e6) }

func (r *Results) tables() []table {
	var out []table
	for _, w := range workloads {
		t := table{workload: w.Name}
		switch {
		case strings.HasPrefix(w.Name, "commit-"):
			t.columns = []column{{"commits/s", "commits/s", count}, {"p50", "p50 µs", duration}, {"p99", "p99 µs", duration}}
			if !strings.HasSuffix(w.Name, "-part") {
				t.columns = append(t.columns, column{"processor a turn", "processor µs", duration})
			}
			t.columns = append(t.columns, column{"resident", "resident", size})
		case w.Name == "read":
			hot := table{workload: w.Name, note: "hot"}
			cold := table{workload: w.Name, note: "after dropping caches and opening again"}
			for _, n := range lengths {
				hot.columns = append(hot.columns, column{count(float64(n)) + " nodes", fmt.Sprint("load ", n), duration})
				cold.columns = append(cold.columns,
					column{count(float64(n)) + " nodes", fmt.Sprint("cold load ", n), duration},
					column{"with opening", fmt.Sprint("open and cold load ", n), duration})
			}
			hot.columns = append(hot.columns, column{"last 20 of 10,000", "last 20", duration},
				column{"1,000 nodes, first time", "first load 1000", duration},
				column{"one node", "one node", duration}, column{"by key", "one node by key", duration}, column{"fork of 10,000", "fork", duration})
			out = append(out, hot)
			t = cold
		case w.Name == "list-label":
			t.columns = []column{{"first page", "first page", duration}}
		case strings.HasPrefix(w.Name, "list"):
			t.columns = []column{{"first page", "first page", duration}}
			if strings.HasSuffix(w.Name, "hot") {
				t.columns = append(t.columns, column{"commits/s", "hot commits/s", count},
					column{"resident", "resident", size}, column{"of that, pages of files", "resident of files", size})
			} else {
				if w.Name == "list" {
					t.columns = append(t.columns, column{"just created", "first page, just created", duration})
				}
				t.columns = append(t.columns, column{"middle page", "middle page", duration},
					column{"opening and first page, cold", "open and first page, cold", duration})
			}
		case w.Name == "past":
			t.columns = []column{{"last 10 nodes", "last 10", duration}, {"checkpoint", "checkpoint", duration}}
		case w.Name == "disk-long":
			t.columns = []column{
				{"files", "raw", size},
				{"zstd -19", "zstd -19", size},
				{"records", "records", size},
				{"on disk", "bytes", size},
				{"records against zstd -19, least", "least ratio", times},
				{"greatest", "greatest ratio", times},
			}
		case w.Name == "disk-prompts":
			t.columns = []column{
				{"all versions", "bytes, committed", size},
				{"against the last, greatest", "greatest, committed", times},
				{"vacuumed", "bytes, vacuumed", size},
				{"against the last, greatest", "greatest, vacuumed", times},
			}
		case w.Name == "growing-part":
			t.columns = []column{
				{"steps/s", "steps/s", count},
				{"p50", "p50 µs", duration},
				{"p99", "p99 µs", duration},
				{"the last version", "last version", size},
				{"reading it", "read back", duration},
				{"on disk", "bytes", size},
				{"compacted", "compacted", size},
			}
		case strings.HasPrefix(w.Name, "memory"):
			t.columns = []column{{"anonymous, at most", "anonymous", size}, {"before the store was opened", "before", size}, {"resident, at most", "resident", size}, {"commits", "commits", count}}
		case strings.HasPrefix(w.Name, "rewrite"):
			t.columns = []column{{"the store", "store", size}, {"took", "compact", duration}, {"resident before", "before", size}, {"resident, at most", "resident", size}, {"anonymous, at most", "anonymous", size}}
		case w.Name == "vacuum-one":
			t.columns = []column{
				{"vacuum", "vacuum", duration},
				{"and the engine's", "vacuum, engine", duration},
				{"erase", "erase", duration},
				{"and the engine's", "erase, engine", duration},
			}
		case w.Name == "disk-corpus":
			t.columns = []column{{"on disk", "bytes", size}, {"payloads", "raw", size}}
		case strings.HasPrefix(w.Name, "disk"):
			t.columns = []column{{"on disk", "bytes", size}}
		case w.Name == "reclaim":
			t.columns = []column{{"delete what nothing refers to", "reclaim", duration}, {"shrink the files", "compact", duration}}
		case w.Name == "growth":
			for _, what := range []string{"commit", "load"} {
				for _, n := range r.Scale.Growth {
					t.columns = append(t.columns, column{fmt.Sprintf("%s at %s", what, count(float64(n))), fmt.Sprint(what, " at ", n), duration})
				}
			}
		}
		out = append(out, t)
	}
	return out
}

func title(workload string) string {
	i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == workload })
	return workloads[i].Title
}

// rows returns a table's text, with the spread where there were rounds.
func (r *Results) rows(t table) [][]string {
	out := [][]string{{"", "survives"}}
	for _, c := range t.columns {
		out[0] = append(out[0], c.title)
	}
	for _, c := range contestants {
		row, any := []string{c.Name, c.Durable}, false
		for _, col := range t.columns {
			v, ok := r.value(t.workload, c.Name, col.metric)
			text := "–"
			if ok {
				any = true
				text = col.format(v.Median)
				if v.Min != v.Max {
					text += fmt.Sprintf(" (%s–%s)", col.format(v.Min), col.format(v.Max))
				}
			}
			row = append(row, text)
		}
		if any {
			out = append(out, row)
		}
	}
	return out
}

func (r *Results) failures() []string {
	var out []string
	for _, c := range r.Cells {
		if c.Error != "" {
			out = append(out, fmt.Sprintf("%s, %s, round %d: %s", c.Workload, c.Contestant, c.Round+1, c.Error))
		}
	}
	return out
}

// reached returns the table of targets.
func (r *Results) reached() [][]string {
	out := [][]string{{"", "to reach", "measured", ""}}
	for _, t := range targets {
		v, ok := t.get(r)
		if !ok {
			continue
		}
		sign, good := "≥ ", v >= t.want
		if !t.least {
			sign, good = "≤ ", v <= t.want
		}
		verdict := "reached"
		switch {
		case t.large && r.Quick:
			verdict = "not judged: a small store"
		case !good:
			verdict = "**missed**"
		}
		out = append(out, []string{t.name, sign + fmt.Sprint(t.want) + t.unit, fmt.Sprintf("%.3g", v) + t.unit, verdict})
	}
	return out
}

// text is the report for a terminal.
func (r *Results) text() string {
	var b strings.Builder
	for _, t := range r.tables() {
		if rows := r.rows(t); len(rows) > 1 {
			fmt.Fprintf(&b, "\n%s\n", heading(t))
			align(&b, rows)
		}
	}
	if rows := r.reached(); len(rows) > 1 {
		fmt.Fprintf(&b, "\nRatios within this run (medians)\n")
		align(&b, rows)
	}
	for _, f := range r.failures() {
		fmt.Fprintln(&b, "failed:", f)
	}
	fmt.Fprintf(&b, "\n%s\n%.1f minutes\n", r.describe(), r.Minutes)
	return b.String()
}

func heading(t table) string {
	if t.note != "" {
		return title(t.workload) + ": " + t.note
	}
	return title(t.workload)
}

func align(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, s := range row {
			widths[i] = max(widths[i], len([]rune(s)))
		}
	}
	for _, row := range rows {
		for i, s := range row {
			fmt.Fprintf(b, "  %-*s", widths[i], s)
		}
		b.WriteByte('\n')
	}
}

func (r *Results) describe() string {
	m := r.Machine
	input := "made up after the distributions of real transcripts"
	if r.Corpus {
		input = "real transcripts, scaled with other numbers and ids in them"
	}
	return fmt.Sprintf("Machine: %s, %d cores, %d GiB, %s, %s, %s; %s.\nTurnstone %s. Input: %s. Rounds: %d.",
		m.CPU, m.Cores, int(math.Round(float64(m.MemoryMiB)/1024)), m.Kernel, m.FileSystem, m.Go, strings.Join(m.Modules, ", "), m.Commit, input, r.Rounds)
}

func (r *Results) save(file string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// Where benchmarks.md is written anew.
const beginMark, endMark = "<!-- results: written by bench/compare -write -->\n", "<!-- end of results -->\n"

// write updates benchmarks.md in dir, and writes the plots and the data beside
// that file.
func (r *Results) write(dir string) error {
	file := filepath.Join(dir, "benchmarks.md")
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %q and %q", file, beginMark, endMark)
	}
	beside := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(beside, 0o755); err != nil {
		return err
	}
	plots, err := r.plot(beside)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before + beginMark + "\n")
	fmt.Fprintf(&b, "%s It took %.0f minutes. [Data](benchmarks/results.json).\n\n", strings.ReplaceAll(r.describe(), "\n", " "), r.Minutes)
	b.WriteString("## What is to be reached\n\nRatios within the run, of medians.\n\n")
	markdown(&b, r.reached())
	for _, f := range r.failures() {
		fmt.Fprintf(&b, "\nFailed: %s\n", f)
	}
	b.WriteString("\n## Figures\n\n[All tables](benchmarks/tables.txt) have the median (least–greatest) of the rounds.\n")
	for _, t := range r.tables() {
		if p := plots[heading(t)]; p != "" {
			fmt.Fprintf(&b, "\n![%s](benchmarks/%s)\n", heading(t), p)
		}
	}
	b.WriteString("\n" + endMark + after)
	for name, text := range map[string]string{file: b.String(), filepath.Join(beside, "tables.txt"): r.text()} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return r.save(filepath.Join(beside, "results.json"))
}

func markdown(b *strings.Builder, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
}
