package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/sealed"
)

func (a *app) copy() *cobra.Command {
	var asLines, overwrite, plain bool
	c := &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Copy a store to another engine or place, or bring a copy up to date",
		Long: "Copy the store FROM to TO. They may be on different engines. The command verifies FROM, writes all records\n" +
			"that differ, deletes records that FROM does not have, verifies TO, and compares the commit ids of all heads. Run\n" +
			"it again to copy what is new, or to go on after an interruption. TO must be empty or a copy of FROM, and no\n" +
			"process should have it open. It can be opened when the copy is complete. If TO was written to since the last\n" +
			"copy, the command refuses without --overwrite. Commits to FROM during the copy are copied as well, if FROM\n" +
			"comes to rest.\n\nWith --keys TO is encrypted, whether FROM is or not.",
		Example: "turnstone copy store.pebble badger:copy.badger",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := *a, *a
			from.url, to.url, to.onlyRead = args[0], args[1], false
			r, err := copyStore(cmd.Context(), &from, &to, overwrite, plain)
			if err != nil {
				return err
			}
			if asLines {
				return asJSON(cmd.OutOrStdout(), r)
			}
			return printCopy(cmd.OutOrStdout(), r)
		},
	}
	c.Flags().BoolVar(&overwrite, "overwrite", false, "copy also if TO was written to since the last copy; what was written there is lost")
	c.Flags().BoolVar(&plain, "decrypt", false, "do not encrypt TO")
	jsonFlag(c, &asLines)
	return c
}

func printCopy(w io.Writer, r *turnstone.CopyReport) error {
	p := printer{w: w}
	p.printf("copied   %s of %d, %s\n", plural(r.Written, "record"), r.Records, size(uint64(r.Bytes)))
	if r.Deleted > 0 {
		p.printf("deleted  %s that the source does not have any more\n", plural(r.Deleted, "record"))
	}
	p.printf("equal    the heads of %s; every hash, link, checksum and reference of the copy is right\n", plural(r.Sessions, "session"))
	return p.err
}

// copyStore copies the store of from to the engine of to. It checks that the source is
// a store before it creates anything at the destination.
func copyStore(ctx context.Context, from, to *app, overwrite, plain bool) (r *turnstone.CopyReport, err error) {
	if found, err := from.mayExist(); err != nil {
		return nil, err
	} else if !found {
		return nil, fmt.Errorf("%w at %s", turnstone.ErrStoreNotFound, from.shown())
	}
	src, err := from.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	in, err := from.decrypted(ctx, src, "")
	if errors.Is(err, sealed.ErrNotEncrypted) {
		in, err = src, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := turnstone.Open(ctx, in, &turnstone.Options{MustExist: true, NoAutoSeal: true})
	if err == nil {
		err = st.Close()
	}
	if err != nil {
		return nil, err
	}
	dst, err := to.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	out := dst
	if !plain {
		if out, err = to.decrypted(ctx, dst, ""); err != nil {
			return nil, err
		}
	}
	progress, finish := steps()
	defer finish()
	return turnstone.Copy(ctx, in, out, turnstone.CopyOptions{Progress: progress, Overwrite: overwrite})
}
