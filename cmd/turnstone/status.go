package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

func (a *app) status() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "status [FOLDER…]",
		Short:   "Show which transcripts of this machine the store has",
		Long:    "Show the folders that `turnstone follow` follows, and how many of their files the store has as they are now.\nThen name the files that it does not have, and why those can't be imported that can't.",
		Example: "turnstone status .",
		RunE: func(cmd *cobra.Command, folders []string) error {
			homes, err := homesOf(folders)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return runStatus(cmd, st, homes, asLines) })
		},
	}
	jsonFlag(c, &asLines)
	return c
}

// A statusLine is the state of a folder.
type statusLine struct {
	Agent  string            `json:"agent,omitempty"`
	Folder string            `json:"folder"`
	Files  int               `json:"files"`
	Stored int               `json:"stored"` // files that the store has as they are now
	Bytes  int64             `json:"bytes"`  // of all files
	Behind []string          `json:"behind,omitempty"`
	Unread map[string]string `json:"unread,omitempty"` // reasons by file
}

func runStatus(cmd *cobra.Command, st *turnstone.Store, homes []importer.Home, asLines bool) error {
	seen, err := importer.ReadSeen(cmd.Context(), st)
	if err != nil {
		return err
	}
	t := table{least: []string{"SIZE", "AGENT"}}
	t.row("AGENT", "FILES", "STORED", "BEHIND", "UNREAD", "SIZE", "FOLDER")
	var all []statusLine
	for _, h := range homes {
		l, err := statusOf(cmd, seen, h)
		if err != nil {
			return err
		}
		all = append(all, l)
		t.row(cmp.Or(l.Agent, "-"), fmt.Sprint(l.Files), fmt.Sprint(l.Stored), fmt.Sprint(len(l.Behind)), fmt.Sprint(len(l.Unread)), size(uint64(l.Bytes)), line(l.Folder, 200))
	}
	if asLines {
		for _, l := range all {
			if err := asJSON(cmd.OutOrStdout(), l); err != nil {
				return err
			}
		}
		return nil
	}
	if err := t.write(cmd.OutOrStdout(), width(cmd.OutOrStdout())); err != nil {
		return err
	}
	p := printer{w: cmd.OutOrStdout()}
	const few = 10
	for _, l := range all {
		for _, path := range l.Behind[:min(few, len(l.Behind))] {
			p.printf("behind   %s\n", line(path, 200))
		}
		for _, path := range slices.Sorted(maps.Keys(l.Unread))[:min(few, len(l.Unread))] {
			p.printf("unread   %s: %s\n", line(strings.TrimPrefix(path, l.Folder+"/"), 120), clean(l.Unread[path]))
		}
		if more := max(len(l.Behind)-few, 0) + max(len(l.Unread)-few, 0); more > 0 {
			p.printf("and %d more in %s\n", more, line(l.Folder, 200))
		}
	}
	return p.err
}

// statusOf compares the files of a folder with those that the store has. It reads those that it does not have.
func statusOf(cmd *cobra.Command, seen importer.SeenSet, h importer.Home) (statusLine, error) {
	l := statusLine{Agent: h.Agent, Folder: h.Folder, Unread: map[string]string{}}
	files, err := transcriptsBelow(cmd.Context(), h.Folder, func(string) {})
	if err != nil {
		return l, err
	}
	r := &reading{cmd: cmd}
	for _, s := range files {
		if s.Version == nil {
			continue // It is gone.
		}
		l.Files++
		l.Bytes += s.Size
		if seen[*s.Version] {
			l.Stored++
			continue
		}
		path := s.Path
		_, bad, err := r.parse(path)
		switch {
		case err != nil:
			return l, err
		case len(bad) > 0:
			l.Unread[path] = bad[0].Reason
		default:
			l.Behind = append(l.Behind, path)
		}
	}
	return l, nil
}
