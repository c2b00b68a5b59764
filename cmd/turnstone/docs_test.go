package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

var update = flag.Bool("update", false, "write docs/cli.md")

// example returns an app on the demo's store, in which every time, id and salt is
// the same in every run.
func example(t *testing.T) *app {
	t.Helper()
	t.Setenv(storeVariable, "")
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	now := time.Date(2026, 4, 1, 9, 0, 0, 0, time.UTC)
	a := &app{url: t.TempDir() + "/store"}
	a.options = turnstone.Options{
		NoAutoSeal: true,
		Random:     rand.NewChaCha8([32]byte{1}),
		Now:        func() time.Time { now = now.Add(time.Minute); return now },
	}
	d := demonstration{app: a, p: printer{w: &bytes.Buffer{}}}
	if err := d.talk(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// run runs a command line in this process.
func (a *app) run(t *testing.T, line string) (string, error) {
	t.Helper()
	args, err := split(line)
	if err != nil || len(args) < 2 || args[0] != "turnstone" {
		t.Fatalf("%q: %v", line, err)
	}
	b := &app{url: a.url, options: a.options}
	c := b.command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(append([]string{"--store", a.url}, args[1:]...))
	err = c.ExecuteContext(t.Context())
	return out.String(), err
}

// split splits a command line at spaces that are not within single quotes.
func split(line string) ([]string, error) {
	parts := strings.Split(line, "'")
	if len(parts)%2 == 0 {
		return nil, errors.New("a quote is not closed")
	}
	var out []string
	for i, p := range parts {
		if i%2 == 1 {
			out = append(out, p)
		} else {
			out = append(out, strings.Fields(p)...)
		}
	}
	return out, nil
}

// varying replaces output that differs between machines: durations and sizes of files.
var varying = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`(took +)\S+`), "${1}2ms"},
	{regexp.MustCompile(`(on disk +)[\d.]+ .?B`), "${1}45 kB"},
	{regexp.MustCompile(`(, before )[\d.]+ .?B`), "${1}61 kB"},
	{regexp.MustCompile(`( allocated).*`), "${1}"},
	{regexp.MustCompile(`(sessions? came, )[1-9][\d.]* k?B`), "${1}1.6 kB"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(  (?:new generation, )?run| to|  \d+ run|;)`), "2026-04-01 09:30:00$1"},
	{regexp.MustCompile(`( to )\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(  \d+ run)`), "${1}2026-04-01 09:30:00$2"},
	{regexp.MustCompile(`(gone, )[1-9][\d.]* k?B`), "${1}1.6 kB"},
	{regexp.MustCompile(`(bundles?, )[1-9][\d.]* k?B`), "${1}1.6 kB"},
	{regexp.MustCompile(`((?:calls|commits) waited for )\S+`), "${1}2ms"},
}

// TestDocs runs the examples of every command on the demo's store, one after the other,
// and checks that docs/cli.md has their output. `go test ./cmd/turnstone -run Docs -update`
// writes the file.
func TestDocs(t *testing.T) {
	docFile, err := filepath.Abs("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	sshTo(t)
	t.Setenv(passphraseVariable, "correct horse battery staple")
	a := example(t)
	t.Chdir(t.TempDir())
	if err := os.Symlink(a.url, "store.pebble"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("chat.jsonl", []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("databases", []byte("# name URL\neast store.pebble\nwest badger:west.badger\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var doc strings.Builder
	root := (&app{}).command()
	fmt.Fprintf(&doc, `# The command

This page is written by `+"`go test ./cmd/turnstone -run Docs -update`"+` from the commands themselves; the test of the
same name runs the examples one after the other on the store of `+"`turnstone demo`"+`, and fails if this page differs.

%s

`+"`--store`"+` takes %s. Without it, `+"`%s`"+` says where the store is; the default is `+"`%s`"+`. If another process has the store open and does not share it, a command
waits up to `+"`--wait`"+` (2 s). With less than `+"`--min-free`"+` of disk space left (64MiB, on Badger 128MiB), new data is refused; commands that read or
remove data still work. `+"`--memory`"+` (64MiB) is what a process keeps in memory for speed. `+"`--read-only`"+` opens a store in a directory that no process has open, and changes nothing there. `+"`--keys`"+` names the keyring of an encrypted store, `+"`--databases`"+` a list of several databases. A session id may be shortened to a beginning that no other session has, except in
`+"`rm`, `erase`, `tombstone`, `rename`, `bundle`, `push`, `pull`"+` and `+"`sessions --parent`"+`; a node id to four characters or more. `+"`turnstone completion bash --help`"+` (or zsh, fish,
powershell) says how to make your shell complete session ids. Output is coloured only on a terminal, and not if `+"`NO_COLOR`"+` is set. Control characters and
escape sequences in stored data are made visible before they reach a terminal.

`, strings.ReplaceAll(exitCodes, "\n", " "), regexp.MustCompile("store: (.*); or set .*").FindStringSubmatch(root.PersistentFlags().Lookup("store").Usage)[1], storeVariable, defaultStore)
	doc.WriteString(jsonDoc())
	for _, g := range root.Groups() {
		fmt.Fprintf(&doc, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				a.document(t, &doc, c)
				for _, below := range c.Commands() {
					a.document(t, &doc, below)
				}
			}
		}
	}
	if *update {
		if err := os.WriteFile(docFile, []byte(doc.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	want, got := strings.Split(doc.String(), "\n"), strings.Split(string(have), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			line := func(s []string) string {
				if i < len(s) {
					return s[i]
				}
				return "(no line)"
			}
			t.Fatalf("docs/cli.md:%d is\n%s\nand should be\n%s\n(-update writes it)", i+1, line(got), line(want))
		}
	}
}

func (a *app) document(t *testing.T, doc *strings.Builder, c *cobra.Command) {
	t.Helper()
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	if strings.Contains(long, "\n  ") {
		long = "```\n" + long + "\n```"
	}
	name := c.Use
	if group := c.Parent(); group.HasParent() {
		name = group.Name() + " " + name
	}
	fmt.Fprintf(doc, "\n### `turnstone %s`\n\n%s\n", name, long)
	if flags := c.LocalNonPersistentFlags().FlagUsagesWrapped(100); flags != "" {
		fmt.Fprintf(doc, "\n```\n%s```\n", flags)
	}
	if c.Example == "" {
		return
	}
	fmt.Fprintf(doc, "\n```console\n")
	for _, line := range strings.Split(c.Example, "\n") {
		out, err := a.run(t, line)
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		for _, v := range varying {
			out = v.re.ReplaceAllString(out, v.to)
		}
		if out != "" && !strings.HasSuffix(out, "\n") {
			out += "\n"
		}
		fmt.Fprintf(doc, "$ %s\n%s", line, out)
	}
	fmt.Fprintf(doc, "```\n")
}

// jsonDoc describes the output of --json. It derives the description from the types of
// the lines.
func jsonDoc() string {
	var b strings.Builder
	b.WriteString(`## --json

Every command that reads prints JSON Lines with ` + "`--json`" + `: an object a line, whose names and meanings stay; new ones may join. Times are
RFC 3339 in UTC, durations nanoseconds, sizes bytes, ids hexadecimal. What is empty may be left out.

| command | a line is | with |
|---|---|---|
`)
	for _, row := range []struct {
		commands, what string
		line           any
		more           string
	}{
		{"sessions, label", "a session", turnstone.Info{}, ""},
		{"tree", "a session", turnstone.Info{}, "and depth"},
		{"show", "a node", nodeLine{}, "; the content is payload if it is JSON, text if it is other UTF-8, else base64"},
		{"diff", "a node", nodeLine{}, "; side is common (the last node that both have), a or b"},
		{"grep", "a node that matches", grepLine{}, "; text is what stands around the first match"},
		{"records", "a record", recordLine{}, "; the value is value if it is JSON, text if it is other UTF-8, else base64"},
		{"log", "a commit", commitLine{}, ""},
		{"usage", "a sum", usageLine{}, ""},
		{"changes", "a change", turnstone.Change{}, ""},
		{"keep", "a kept revision", head.Kept{}, ""},
		{"prune", "the report", gc.PruneReport{}, ""},
		{"verify", "the result", verifyLine{}, ""},
		{"scrub", "the report", scrubLine{}, ""},
		{"stats", "the figures", statsLine{}, ""},
		{"gc", "the report", gc.Report{}, ""},
		{"vacuum", "the report", gc.VacuumReport{}, ""},
		{"erase", "the receipt", turnstone.Erasure{}, ""},
		{"bundle", "the report", turnstone.BundleReport{}, "; with -o only"},
		{"unbundle", "a session", turnstone.Unbundled{}, ""},
		{"push, pull, clone", "a session that came", turnstone.Unbundled{}, "; the last line has same, the sessions that had all already, and bytes, those that were sent"},
		{"backup", "the report", backup.Report{}, "; with --every, one for each backup that has something new"},
		{"backup list", "a generation", backup.Generation{}, ""},
		{"backup verify", "the result", verifiedBackup{}, ""},
		{"restore", "the report", backup.Restored{}, ""},
		{"recover", "the report", recoveredLine{}, ""},
		{"copy", "the report", turnstone.CopyReport{}, ""},
		{"move", "the report", moved{}, ""},
		{"namespace where", "databases", whereLine{}, ""},
		{"namespace move", "the report", turnstone.MoveReport{}, ""},
	} {
		names := strings.Join(fields(reflect.TypeOf(row.line)), ", ")
		if row.more != "" && row.more[0] != ';' {
			row.more = " " + row.more
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s%s |\n", strings.ReplaceAll(row.commands, ", ", "`, `"), row.what, names, row.more)
	}
	return b.String()
}

// fields returns the names of a type's fields in JSON. Fields of nested objects are in
// parentheses.
func fields(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			out = append(out, fields(f.Type)...)
			continue
		}
		if !f.IsExported() || name == "-" || slices.Contains(out, name) { // one of an embedded type is hidden
			continue
		}
		of := f.Type
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && of != reflect.TypeFor[time.Time]() {
			name += " (" + strings.Join(fields(of), ", ") + ")"
		}
		out = append(out, name)
	}
	return out
}
