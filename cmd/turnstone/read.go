package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/disk"
)

func (a *app) sessions() *cobra.Command {
	var limit int
	var parent string
	c := &cobra.Command{
		Use:   "sessions",
		Short: "List sessions, the most recently updated first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store, _ engine.Engine) error {
				t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				p := printer{w: t}
				p.printf("SESSION\tREVISION\tNODES\tPAYLOAD\tUPDATED\tNAME\n")
				shown, more := 0, false
				for o := (turnstone.ListOptions{Limit: 200, Parent: parent}); ; {
					page, err := st.List(cmd.Context(), o)
					if err != nil {
						return err
					}
					for _, s := range page.Sessions {
						if more = limit > 0 && shown == limit; more {
							break
						}
						shown++
						name := line(s.Name, 50)
						if s.Parent != "" {
							kind := "fork of "
							if s.Detached {
								kind = "child of "
							}
							name = strings.TrimSpace(name + " (" + kind + line(s.Parent, 40) + ")")
						}
						p.printf("%s\t%d\t%d\t%s\t%s\t%s\n", line(s.ID, 60), s.Revision, s.Nodes, size(s.Bytes), s.Updated.Local().Format("2006-01-02 15:04:05"), name)
					}
					if o.After = page.Next; o.After == "" || more {
						break
					}
				}
				if err := errors.Join(p.err, t.Flush()); err != nil {
					return err
				}
				if more {
					fmt.Fprintf(cmd.ErrOrStderr(), "the %d most recent; --limit 0 shows all\n", limit)
				}
				return nil
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "show at most so many; 0 shows all")
	c.Flags().StringVar(&parent, "parent", "", "children of this session only")
	return c
}

func (a *app) show() *cobra.Command {
	var last int
	var full, whole bool
	c := &cobra.Command{
		Use:   "show SESSION",
		Short: "Print a session's conversation",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store, _ engine.Engine) error {
				s, err := st.Session(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				state, err := s.Load(cmd.Context(), turnstone.Scope{Last: last, Full: full})
				if err != nil {
					return err
				}
				info, err := s.Info(cmd.Context())
				if err != nil {
					return err
				}
				out := bufio.NewWriter(cmd.OutOrStdout())
				p := printer{w: out}
				head(&p, &info, state)
				if hidden := int(info.Nodes) - len(state.Nodes); hidden > 0 {
					p.printf("shown     %s; --full shows those on other branches, too\n", plural(len(state.Nodes), "node"))
				}
				columns := width(cmd.OutOrStdout())
				for _, n := range state.Nodes {
					message(&p, &n, columns, whole)
				}
				return errors.Join(p.err, out.Flush())
			})
		},
	}
	c.Flags().IntVar(&last, "last", 0, "the last so many nodes only")
	c.Flags().BoolVar(&full, "full", false, "all nodes, side branches included, in the order of commits")
	c.Flags().BoolVar(&whole, "whole", false, "do not fold long payloads")
	return c
}

func head(p *printer, i *turnstone.Info, st *turnstone.State) {
	p.printf("session   %s\n", line(i.ID, 200))
	for _, f := range [][2]string{{"name", i.Name}, {"model", i.Model}, {"cwd", i.Cwd}, {"parent", i.Parent}} {
		if f[1] != "" {
			p.printf("%-9s %s\n", f[0], line(f[1], 200))
		}
	}
	leaf := "-"
	if !st.Leaf.IsZero() {
		leaf = st.Leaf.String()[:12]
	}
	p.printf("revision  %d, leaf %s, %s of %s\n", st.Revision, leaf, plural(i.Nodes, "node"), size(i.Bytes))
	for _, part := range st.Parts {
		p.printf("part      %s: %s, set by revision %d\n", line(part.Name, 64), size(uint64(part.Size)), part.Set)
	}
	for _, u := range st.Usage {
		p.printf("usage     %s: %d in, %d out, %d cached, %d written to cache, %d reasoning\n", line(u.Model, 60), u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning)
	}
}

const foldLines = 12

// message prints a node: a line of what it is, and its text, wrapped.
func message(p *printer, n *turnstone.Node, columns int, whole bool) {
	p.printf("\n%s  %s  revision %d\n", n.ID.String()[:12], line(n.Kind, 40), n.Revision)
	lines := wrap(clean(importer.Text(n.Payload)), columns-2)
	if hidden := len(lines) - foldLines; hidden > 1 && !whole {
		lines = append(lines[:foldLines], fmt.Sprintf("… %d more lines, %s in all (--whole shows them)", hidden, size(uint64(len(n.Payload)))))
	}
	for _, l := range lines {
		p.printf("  %s\n", l)
	}
	for _, at := range n.Attachments {
		p.printf("  attachment %s  %s  %s  %s\n", at.ID.String()[:12], size(uint64(at.Size)), line(at.MediaType, 40), line(at.Name, 60))
	}
}

// wrap breaks text into lines of at most n characters, at spaces where it can.
func wrap(text string, n int) []string {
	var out []string
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		r := []rune(strings.ReplaceAll(l, "\t", "    "))
		for len(r) > n {
			cut := n
			for i := n; i > n/2; i-- {
				if r[i] == ' ' {
					cut = i
					break
				}
			}
			out = append(out, string(r[:cut]))
			if r = r[cut:]; len(r) > 0 && r[0] == ' ' {
				r = r[1:]
			}
		}
		out = append(out, string(r))
	}
	return out
}

func (a *app) export() *cobra.Command {
	var path bool
	var output string
	c := &cobra.Command{
		Use:   "export SESSION",
		Short: "Write a session's payloads as lines, byte for byte",
		Long: "Write a session's payloads as lines, byte for byte: all nodes in the order of commits,\n" +
			"or for an imported session in the order of its file.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store, _ engine.Engine) error {
				nodes, err := exported(cmd.Context(), st, args[0], path)
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				if output != "" {
					f, err := os.Create(output)
					if err != nil {
						return err
					}
					defer f.Close()
					w = f
				}
				out := bufio.NewWriter(w)
				for _, n := range nodes {
					if _, err := out.Write(append(n.Payload, '\n')); err != nil {
						return err
					}
				}
				if err := out.Flush(); err != nil {
					return err
				}
				if f, ok := w.(*os.File); ok && output != "" {
					return f.Close()
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&path, "path", false, "the active path only")
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file")
	return c
}

// exported returns the nodes to export.
func exported(ctx context.Context, st *turnstone.Store, id string, path bool) ([]turnstone.Node, error) {
	s, err := st.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: !path})
	if err != nil || path {
		return state.Nodes, err
	}
	for _, part := range state.Parts {
		if part.Name == importer.OrderPart {
			parts, err := s.Checkpoint(ctx, state.Revision)
			if err != nil {
				return nil, err
			}
			return state.Nodes, importer.InFileOrder(state.Nodes, parts[part.Name])
		}
	}
	return state.Nodes, nil
}

func (a *app) verify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check every hash, link, checksum and reference",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store, _ engine.Engine) error {
				progress := bar(-1, "verifying", false)
				v, err := st.Verify(cmd.Context(), func(done int) { progress.Set(done) })
				progress.Finish()
				if err != nil {
					return err
				}
				p := printer{w: cmd.OutOrStdout()}
				for _, problem := range v.Problems {
					p.printf("%s\n", clean(problem.Error()))
				}
				p.printf("%s, %s, %s, %s (%d unreferenced), %s\n", plural(v.Sessions, "session"), plural(v.Commits, "commit"),
					plural(v.Nodes, "node"), plural(v.Blobs, "blob"), v.Unreferenced, plural(v.Records, "record"))
				if !v.OK() {
					return fmt.Errorf("%s found", plural(len(v.Problems)+v.More, "problem"))
				}
				p.printf("every hash, link, checksum and reference is right\n")
				return p.err
			})
		},
	}
}

func (a *app) stats() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Say what the store holds and what that takes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store, _ engine.Engine) error {
				s, err := st.Stats(cmd.Context())
				if err != nil {
					return err
				}
				p := printer{w: cmd.OutOrStdout()}
				p.printf("sessions     %d\ncommits      %d\nnodes        %d\nblobs        %d\n", s.Sessions, s.Commits, s.Nodes, s.Blobs)
				p.printf("segments     %d sealed, %d loose\n", s.Sealed, s.Loose)
				p.printf("logical      %s of payloads, %s of checkpoints\n", size(s.Payload), size(s.Checkpoints))
				p.printf("stored       %s in %s%s\n", size(s.Stored.Total()), plural(s.Stored.Records, "record"), ratio(s.Payload+s.Checkpoints, s.Stored.Total()))
				kinds := make([]string, 0, len(s.ByKind))
				for kind := range s.ByKind {
					kinds = append(kinds, kind)
				}
				slices.Sort(kinds)
				for _, kind := range kinds {
					b := s.ByKind[kind]
					p.printf("  %-10s %s in %s\n", kind, size(b.Total()), plural(b.Records, "record"))
				}
				if dir, ok := directory(a.url); ok {
					n, err := disk.Allocated(dir)
					if err != nil {
						return err
					}
					p.printf("on disk      %s allocated%s\n", size(uint64(n)), ratio(s.Payload+s.Checkpoints, uint64(n)))
				}
				for _, u := range s.Usage {
					p.printf("usage        %s: %d in, %d out, %d cached, %d written to cache, %d reasoning\n", line(u.Model, 60), u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning)
				}
				return p.err
			})
		},
	}
}

func ratio(logical, stored uint64) string {
	if stored == 0 || logical <= stored {
		return ""
	}
	return fmt.Sprintf(", %.2f times smaller", float64(logical)/float64(stored))
}
