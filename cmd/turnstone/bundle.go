package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

func (a *app) bundle() *cobra.Command {
	var asLines, all, plain bool
	var output, group string
	c := &cobra.Command{
		Use:   "bundle SESSION[@REVISION]...",
		Short: "Write sessions to a file that any store can read",
		Long: "Write sessions to one compressed file, with all revisions, branches, checkpoints that are retained, attachments,\n" +
			"records, labels, usage and times. `turnstone unbundle` makes them in another store, with the ids of nodes and commits\n" +
			"that they have here. What was tombstoned is not in the file. With @REVISION, write only what came after a revision\n" +
			"that the other store has. Without -o, write to the standard output, for example for `ssh HOST turnstone unbundle -`.\n" +
			"With --keys the file is encrypted, and `turnstone unbundle` needs the same keyring.",
		Example: "turnstone bundle trip -o trip.bundle\nturnstone bundle trip@5 -o trip-since-5.bundle\nturnstone bundle --all -o all.bundle",
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			if all == (len(args) > 0) && group == "" || group != "" && (all || len(args) > 0) {
				return errors.New("name sessions, or --group, or --all")
			}
			of := make([]turnstone.Bundled, len(args))
			for i, arg := range args {
				var err error
				if of[i], err = bundled(arg); err != nil {
					return err
				}
			}
			if all || group != "" {
				o := turnstone.ListOptions{Group: group, Limit: turnstone.MaxPage}
				for more := true; more; more = o.After != "" {
					page, err := st.List(cmd.Context(), o)
					if err != nil {
						return err
					}
					for i := range page.Sessions {
						of = append(of, turnstone.Bundled{ID: page.Sessions[i].ID})
					}
					o.After = page.Next
				}
			}
			if output == "" && terminal(cmd.OutOrStdout()) {
				return errors.New("a bundle is no text for a terminal: name a file with -o, or a pipe")
			}
			var r *turnstone.BundleReport
			err := to(cmd, output, func(w io.Writer) (err error) {
				bundle := func(w io.Writer) (err error) {
					r, err = st.Bundle(cmd.Context(), w, of...)
					return err
				}
				if plain {
					return bundle(w)
				}
				return a.encrypting(cmd.Context(), w, bundle)
			})
			switch {
			case err != nil || output == "":
				return err
			case asLines:
				return asJSON(cmd.OutOrStdout(), r)
			}
			p := printer{w: cmd.OutOrStdout()}
			p.printf("wrote %s, %s, %s, %s of content to %s\n", plural(r.Sessions, "session"), plural(r.Commits, "commit"), plural(r.Nodes, "node"), size(uint64(r.Content)), output)
			return p.err
		}),
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this file; default the standard output")
	c.Flags().StringVar(&group, "group", "", "all sessions of this group and of the groups below it")
	c.Flags().BoolVar(&all, "all", false, "all sessions")
	c.Flags().BoolVar(&plain, "decrypt", false, "do not encrypt the file, although the store is encrypted")
	jsonFlag(c, &asLines)
	return c
}

// bundled parses SESSION[@REVISION]. A session id may have an @ as well: what is behind the last one is a revision only
// if it is a number.
func bundled(arg string) (turnstone.Bundled, error) {
	if i := strings.LastIndexByte(arg, '@'); i >= 0 {
		if r, err := strconv.ParseUint(arg[i+1:], 10, 62); err == nil {
			return turnstone.Bundled{ID: arg[:i], Since: head.Revision(r)}, nil
		}
	}
	if arg == "" {
		return turnstone.Bundled{}, errors.New("a session id is empty")
	}
	return turnstone.Bundled{ID: arg}, nil
}

func (a *app) unbundle() *cobra.Command {
	var asLines bool
	var most byteSize
	var o turnstone.UnbundleOptions
	c := &cobra.Command{
		Use:   "unbundle FILE",
		Short: "Make the sessions of a bundle, or bring them forward",
		Long: "Read what `turnstone bundle` has written, check every hash, and make its sessions. A session that exists goes on\n" +
			"from where it is, if the one in the bundle was there once. If they have gone different ways, the command says so and\n" +
			"changes nothing; --as gives the other one an id of its own. FILE is - for the standard input.",
		Example: "turnstone unbundle trip.bundle\nturnstone unbundle trip.bundle --as trip/from-laptop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			in, err := a.decrypting(cmd.Context(), in)
			if err != nil {
				return err
			}
			o.MaxBytes = int64(most)
			var r *turnstone.UnbundleReport
			err = a.with(cmd.Context(), false, func(st *turnstone.Store) (err error) {
				r, err = st.Unbundle(cmd.Context(), in, o)
				var wrong *turnstone.BundleError
				if errors.As(err, &wrong) {
					err = inputError{err}
				}
				return err
			})
			if err != nil {
				return err
			}
			if asLines {
				for _, s := range r.Sessions {
					if err := asJSON(cmd.OutOrStdout(), s); err != nil {
						return err
					}
				}
				return nil
			}
			p := printer{w: cmd.OutOrStdout()}
			for i := range r.Sessions {
				printUnbundled(&p, &r.Sessions[i])
			}
			return p.err
		},
	}
	c.Flags().StringVar(&o.As, "as", "", "the id of the session here, if the bundle has only one")
	c.Flags().StringVar(&o.Branch, "branch", "", "if the only session of the bundle has diverged, make it a branch whose end is kept under this name")
	c.Flags().Var(&most, "max", "refuse a bundle that expands to more bytes; default no limit")
	jsonFlag(c, &asLines)
	return c
}

// printUnbundled prints a line about a session that came from another store.
func printUnbundled(p *printer, s *turnstone.Unbundled) {
	what := fmt.Sprintf("revision %d to %d", s.From, s.To)
	switch {
	case s.Branch > 0:
		what = fmt.Sprintf("revision %d to %d, with a branch whose end is revision %d", s.From, s.To, s.Branch)
	case s.Created:
		what = fmt.Sprintf("new, at revision %d", s.To)
	case s.From == s.To:
		what = fmt.Sprintf("stays at revision %d", s.To)
	}
	p.printf("%s  %s\n", clean(s.ID), what)
}
