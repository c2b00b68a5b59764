package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// recordsFlags has the flags of records.
type recordsFlags struct {
	prefix  string
	limit   int
	asLines bool
}

func (a *app) records() *cobra.Command {
	var f recordsFlags
	c := &cobra.Command{
		Use:   "records [SESSION [KEY]]",
		Short: "List the records of a session or of all, or write the value of one",
		Long: "List records, the small values that sessions have beside their histories, in the order of their keys. Without\n" +
			"SESSION, list those of all sessions, except records whose key begins with a dot, and those with which imports note\n" +
			"what they have read, unless --prefix asks for these. With KEY, write the value of that record, byte for byte.",
		Example: "turnstone records\nturnstone records trip\nturnstone records trip stage",
		Args:    cobra.MaximumNArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			if f.limit < 0 {
				return errLimit
			}
			if len(args) == 2 && !f.asLines {
				return f.value(cmd, st, args[0], args[1])
			}
			return f.run(cmd, st, args)
		}),
	}
	c.Flags().StringVar(&f.prefix, "prefix", "", "list only records whose key begins with this text")
	c.Flags().IntVar(&f.limit, "limit", 50, "greatest number of records to show; 0 shows all")
	jsonFlag(c, &f.asLines)
	a.complete(c)
	return c
}

type recordLine struct {
	turnstone.Record
	Size   int             `json:"size"`
	Value  json.RawMessage `json:"value,omitempty"` // see asContent
	Text   *string         `json:"text,omitempty"`
	Base64 []byte          `json:"base64,omitempty"`
}

func recordLineOf(r *turnstone.Record) recordLine {
	l := recordLine{Record: *r, Size: len(r.Value)}
	l.Value, l.Text, l.Base64 = asContent(r.Value)
	return l
}

// value writes the value of one record.
func (f *recordsFlags) value(cmd *cobra.Command, st *turnstone.Store, id, key string) error {
	s, err := session(cmd.Context(), st, id)
	if err != nil {
		return err
	}
	r, err := s.Record(cmd.Context(), key)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(r.Value)
	return err
}

// run lists what args name: all records, those of a session, or one.
func (f *recordsFlags) run(cmd *cobra.Command, st *turnstone.Store, args []string) error {
	list, hidden := st.Records, ""
	if len(args) == 0 && f.prefix == "" {
		hidden = importer.SeenPrefix
	}
	if len(args) > 0 {
		s, err := session(cmd.Context(), st, args[0])
		if err != nil {
			return err
		}
		list = s.Records
		if len(args) == 2 {
			list = func(ctx context.Context, _ turnstone.RecordQuery) (turnstone.RecordPage, error) {
				r, err := s.Record(ctx, args[1])
				return turnstone.RecordPage{Records: []turnstone.Record{r}}, err
			}
		}
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	var t table
	t.row("SESSION", "KEY", "SIZE", "SET", "VALUE")
	print, end := func(r *turnstone.Record) error {
		t.row(line(r.Session, 60), line(r.Key, 60), size(uint64(len(r.Value))), moment(r.Time), preview(r.Value))
		return nil
	}, func() error { return t.write(out, width(cmd.OutOrStdout())) }
	if f.asLines {
		print, end = func(r *turnstone.Record) error {
			return asJSON(out, recordLineOf(r))
		}, func() error { return nil }
	}
	more, err := f.each(cmd.Context(), list, hidden, print)
	if err := errors.Join(err, end(), out.Flush()); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "the first %d; --limit 0 shows all\n", f.limit)
	}
	return nil
}

// each calls print with the records that list returns, up to the limit, except those whose key begins with hidden. more reports whether there are others.
func (f *recordsFlags) each(ctx context.Context, list func(context.Context, turnstone.RecordQuery) (turnstone.RecordPage, error), hidden string, print func(*turnstone.Record) error) (more bool, err error) {
	q := turnstone.RecordQuery{Prefix: f.prefix}
	for n := 0; ; {
		page, err := list(ctx, q)
		if err != nil {
			return false, err
		}
		for i := range page.Records {
			if hidden != "" && strings.HasPrefix(page.Records[i].Key, hidden) {
				continue
			}
			if f.limit > 0 && n == f.limit {
				return true, nil
			}
			n++
			if err := print(&page.Records[i]); err != nil {
				return false, err
			}
		}
		if q.After = page.Next; q.After == "" {
			return false, nil
		}
	}
}

// preview returns the beginning of a value in one line.
func preview(value []byte) string {
	if !utf8.Valid(value) {
		return faint("(bytes)")
	}
	return line(string(value), 60)
}
