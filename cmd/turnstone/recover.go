package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/push"
	"github.com/turnstonedb/turnstone/recovery"
)

func (a *app) recover() *cobra.Command {
	var o recovery.Options
	p := &pushing{}
	c := &cobra.Command{
		Use:   "recover FROM TO",
		Short: "Bring what can be read of a damaged store to another one",
		Long: "Bring what can be read of the damaged store FROM to TO, which may be new, and list what is lost. Nothing in FROM is changed, and no\n" +
			"process may have it open. If its database does not open, its files are read one by one. The history of a session ends\n" +
			"before the first commit that is lost; what can be read of what came after is in a session of its own. A node whose\n" +
			"content is lost becomes a tombstone, and the rest keeps its ids. A session whose metadata are lost has an id that begins\n" +
			"with recovered-. If something is lost, the exit code is 4.\n" +
			"The command can be repeated. TO is what `turnstone push` takes. If TO has sessions of the store, from a backup for\n" +
			"example, they go on to where they stood in FROM.",
		Example: "turnstone recover store.pebble saved.pebble",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.Namespace = p.namespace
			out := printer{w: cmd.OutOrStdout()}
			o.Progress = func(s turnstone.Unbundled) {
				if !p.asLines {
					printUnbundled(&out, &s)
				}
			}
			to, err := a.at(args[1], p)
			if err != nil {
				return err
			}
			from, err := open.Remains(cmd.Context(), args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w at %s", turnstone.ErrStoreNotFound, open.Redacted(args[0]))
			} else if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, from.Close()) }()
			if err := anything(cmd.Context(), from, o.Namespace); err != nil {
				return err
			}
			if from, err = a.decryptedRemains(cmd.Context(), from, o.Namespace); err != nil {
				return err
			}
			return to.peer(cmd.Context(), false, func(st push.Peer) error {
				r, err := recovery.Run(cmd.Context(), from, st, o)
				if p.asLines {
					line := recoveredLine{Report: *r}
					for _, l := range r.Lost {
						line.Lost = append(line.Lost, lossLine{l.Session, l.What, l.Err.Error()})
					}
					out.err = errors.Join(out.err, asJSON(out.w, line))
				} else {
					printRecovered(&out, r)
				}
				switch {
				case err != nil:
				case len(r.Lost) > 0:
					err = fmt.Errorf("%w: %s lost", errDamaged, plural(len(r.Lost), "item"))
				case len(r.Files)+r.Gaps+r.Damaged > 0:
					err = fmt.Errorf("%w: nothing is known to be lost", errDamaged)
				}
				return errors.Join(explained(err, false), out.err)
			})
		},
	}
	c.Flags().StringVar(&o.Dir, "temp", "", "the directory for a copy of what does not fit into memory; default that of the system")
	p.other(c)
	c.Flags().Lookup("namespace").Usage = "the namespace, of both stores"
	return c
}

// decryptedRemains returns what decrypts a namespace of a damaged database, or from if that is not encrypted.
func (a *app) decryptedRemains(ctx context.Context, from open.Remaining, namespace string) (open.Remaining, error) {
	ring, err := a.ring(ctx)
	if err != nil {
		return from, err
	}
	s, err := sealed.Scanner(ctx, from, ring, namespace)
	return &remainsBelow{from, s}, err
}

// remainsBelow is a damaged database whose records are decrypted.
type remainsBelow struct {
	open.Remaining
	scanner engine.Scanner
}

func (r *remainsBelow) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return r.scanner.Scan(ctx, of)
}

// anything fails if a database yields no record of a namespace: then no other store is made. It does not look at
// checksums.
func anything(ctx context.Context, from open.Remaining, namespace string) error {
	var why error
	for _, err := range engine.Around(ctx, from, engine.PrefixRange(keys.Prefix(namespace)), func(g engine.Gap) { why = g.Err }) {
		return err
	}
	if lost := from.Lost(); why == nil && len(lost) > 0 {
		why = fmt.Errorf("%w: %s", engine.ErrCorrupt, strings.Join(lost, "; "))
	}
	return errors.Join(fmt.Errorf("%w: no record of it can be read", turnstone.ErrStoreNotFound), why)
}

// recoveredLine is the line of JSON about a recovery.
type recoveredLine struct {
	recovery.Report
	Lost []lossLine `json:"lost,omitempty"`
}

type lossLine struct {
	Session string `json:"session"`
	What    string `json:"what"`
	Why     string `json:"why"`
}

func printRecovered(p *printer, r *recovery.Report) {
	for _, file := range r.Files {
		p.printf("damage   %s\n", clean(file))
	}
	for i := range r.Lost {
		p.printf("lost     %s\n", clean(r.Lost[i].Error()))
	}
	for _, piece := range r.Pieces {
		p.printf("piece    %s has what could be read of revisions %d to %d of %s\n", clean(piece.Session), piece.First, piece.Last, clean(piece.Of))
	}
	p.printf("read     %s, %d damaged, %s\n", plural(r.Records, "record"), r.Damaged, plural(r.Gaps, "gap"))
	p.printf("came     %s; %d had all already\n", plural(len(r.Sessions), "session"), r.Same)
}
