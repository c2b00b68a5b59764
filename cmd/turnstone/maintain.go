package main

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// steps returns a function that draws the progress of maintenance, and one that ends
// the drawing.
func steps() (progress func(gc.Progress), finish func()) {
	b := bar(-1, "", false)
	return func(p gc.Progress) {
		b.Describe(p.Phase)
		b.Set(p.Done)
	}, func() { b.Finish() }
}

func (a *app) gc() *cobra.Command {
	var o gc.Options
	var only string
	var asLines bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Delete blobs that nothing refers to any more",
		Long: "Delete blobs that nothing refers to any more: no session, no fork, no kept revision,\n" +
			"and no upload that has not expired. The command reads only what changed since the last run.\n" +
			"Run `turnstone vacuum` to shrink the files.",
		Example: "turnstone gc --dry-run",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			var finish func()
			o.Progress, finish = steps()
			on, err := maintained(cmd.Context(), st, only)
			if err != nil {
				return err
			}
			began := time.Now()
			r, err := on.GC(cmd.Context(), o)
			if only == "" && !o.DryRun {
				note(cmd, st, turnstone.OpGC, began, r, err)
			}
			finish()
			switch {
			case r == nil:
				return err
			case asLines:
				return errors.Join(asJSON(cmd.OutOrStdout(), r), err)
			}
			return errors.Join(printGC(cmd.OutOrStdout(), r, o), err)
		}),
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "change nothing, print what would be deleted")
	c.Flags().BoolVar(&o.Full, "full", false, "first rebuild the collector's index from all commits")
	c.Flags().StringVar(&only, "session", "", "read only what changed in this session")
	jsonFlag(c, &asLines)
	a.complete(c, "session")
	return c
}

// printGC prints the report of a collection with the options o.
func printGC(w io.Writer, r *gc.Report, o gc.Options) error {
	deleted := "deleted"
	if o.DryRun {
		deleted = "to delete"
	}
	p := printer{w: w}
	p.printf("read       %s of %s that changed\n", plural(r.Commits, "commit"), plural(r.Sessions, "session"))
	p.printf("roots      %d sessions and uploads\n", r.Roots)
	p.printf("retained   %s\n", plural(r.Retained, "blob"))
	p.printf("%-10s %s, %s\n", deleted, plural(r.Deleted, "blob"), size(uint64(r.Bytes)))
	if r.Revived > 0 {
		p.printf("revived    %s that a commit uses again\n", plural(r.Revived, "blob"))
	}
	if r.Expired > 0 {
		p.printf("expired    %s\n", plural(r.Expired, "upload"))
	}
	if o.Full {
		state := "was right"
		if r.Repaired {
			state = "was wrong, and is right now"
		}
		p.printf("index      %s\n", state)
	}
	p.printf("took       %v\n", r.Duration.Round(time.Millisecond))
	return p.err
}

// A reclaimer is a store, or a session of it.
type reclaimer interface {
	GC(ctx context.Context, o gc.Options) (*gc.Report, error)
	Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error)
}

// maintained returns the session that id or its beginning names, or the store if id is
// empty.
func maintained(ctx context.Context, st *turnstone.Store, id string) (reclaimer, error) {
	if id == "" {
		return st, nil
	}
	return session(ctx, st, id)
}

func (a *app) vacuum() *cobra.Command {
	var only string
	var asLines, noCompaction bool
	c := &cobra.Command{
		Use:   "vacuum",
		Short: "Remove deleted content from the store's files, and shrink them",
		Long: "Remove from the store's files the content of tombstoned and pruned nodes, deleted sessions\n" +
			"that no fork holds, and blobs that nothing refers to, and shrink the files. This needs 128 MiB\n" +
			"of free space or a ninth of the store on Pebble, and twice the store on Badger.",
		Example: "turnstone vacuum",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			before := a.onDisk()
			progress, finish := steps()
			on, err := maintained(cmd.Context(), st, only)
			if err != nil {
				return err
			}
			began := time.Now()
			r, err := on.Vacuum(cmd.Context(), gc.VacuumOptions{Progress: progress, NoCompaction: noCompaction})
			finish()
			if only == "" {
				note(cmd, st, turnstone.OpVacuum, began, r, err)
			}
			if err != nil {
				return err
			}
			if asLines {
				return asJSON(cmd.OutOrStdout(), r)
			}
			p := printer{w: cmd.OutOrStdout()}
			a.printVacuum(&p, r, before)
			p.printf("took       %v\n", r.Duration.Round(time.Millisecond))
			return p.err
		}),
	}
	c.Flags().StringVar(&only, "session", "", "remove content and records of this session only")
	c.Flags().BoolVar(&noCompaction, "no-compaction", false, "leave shrinking the files to the engine: removed bytes may stay there until then")
	jsonFlag(c, &asLines)
	a.complete(c, "session")
	return c
}

// printVacuum prints the report of a vacuum. before is what the store took on disk
// before.
func (a *app) printVacuum(p *printer, r *gc.VacuumReport, before uint64) {
	p.printf("removed    content of %s, %s of %s\n", plural(r.Nodes, "node"), plural(r.Records, "record"), plural(r.Removed, "deleted session"))
	p.printf("deleted    %s, %s\n", plural(r.Deleted, "blob"), size(uint64(r.Bytes)))
	p.printf("rewritten  %s\n", plural(r.Rewritten+r.Packed, "blob"))
	if len(r.Unfinished) > 0 {
		p.printf("unfinished %s: changed meanwhile; run vacuum again\n", line(strings.Join(r.Unfinished, ", "), 400))
	}
	if after := a.onDisk(); after > 0 {
		p.printf("on disk    %s, before %s\n", size(after), size(before))
	}
}

// onDisk returns how many bytes an embedded store takes on disk, or 0 if that is
// unknown.
func (a *app) onDisk() uint64 {
	dir, ok := directory(a.url)
	if !ok {
		return 0
	}
	n, err := open.Allocated(dir)
	if err != nil {
		return 0
	}
	return uint64(n)
}

// pruneFlags has the flags of prune.
type pruneFlags struct {
	gc.PruneOptions
	older, inactive age
	most            byteSize
	session         string
	set, yes        bool
	asLines         bool
}

func (a *app) prune() *cobra.Command {
	var f pruneFlags
	c := &cobra.Command{
		Use:   "prune",
		Short: "Let go of old revisions, and of sessions that nobody uses",
		Long: "Let go of old revisions: with --last all but the last ones of each session, with --older those that were\n" +
			"committed long ago. They can't be read any more, unless they are kept by name (`turnstone keep`);\n" +
			"conversations stay whole. With --set, the session remembers the number, and every later prune applies it.\n" +
			"With --inactive and --most, delete sessions that were not updated for long, or those that were updated least\n" +
			"recently. --group looks at the sessions of a group only, for example at those of a framework. A session that\n" +
			"retains all revisions (`--set --last 0`) is neither pruned nor deleted. Run `turnstone vacuum` to reclaim the\n" +
			"space.",
		Example: "turnstone prune --last 2\nturnstone prune --inactive 90d --most 10GiB --dry-run\nturnstone prune --group langgraph --inactive 30d --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Age, f.Inactive, f.Bytes = time.Duration(f.older), time.Duration(f.inactive), int64(min(f.most, math.MaxInt64))
			deletes := f.Inactive > 0 || f.Bytes > 0
			switch last := cmd.Flags().Changed("last"); {
			case f.set && (f.session == "" || !last):
				return usageError{errors.New("--set needs --session and --last")}
			case f.session != "" && (!last || deletes || f.Age > 0 || f.Group != "" || f.DryRun || f.asLines):
				return usageError{errors.New("--session needs --last, and goes with --set alone")}
			case !last && f.Age == 0 && !deletes:
				return usageError{errors.New("say what to let go of with --last, --older, --inactive or --most; --last 0 prunes only sessions that have a number of their own")}
			}
			if deletes && !f.yes && !f.DryRun {
				return usageError{errors.New("deleting sessions can't be undone: look with --dry-run, confirm with --yes")}
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return f.run(cmd, st) })
		},
	}
	c.Flags().Uint64Var(&f.Revisions, "last", 0, "number of revisions to retain; 0 prunes only sessions that have a number of their own")
	c.Flags().Var(&f.older, "older", "prune revisions that were committed so long ago, such as 36h or 30d, but for the last one")
	c.Flags().Var(&f.inactive, "inactive", "delete sessions that were not updated for so long")
	c.Flags().Var(&f.most, "most", "delete the sessions that were updated least recently, so that the others have at most so many bytes")
	c.Flags().BoolVar(&f.DryRun, "dry-run", false, "change nothing, print what would be done")
	c.Flags().BoolVar(&f.yes, "yes", false, "confirm that sessions are to be deleted")
	jsonFlag(c, &f.asLines)
	c.Flags().StringVar(&f.Group, "group", "", "prune the sessions of this group only, and of the groups below it")
	c.Flags().StringVar(&f.session, "session", "", "prune this session only")
	a.complete(c, "session")
	c.Flags().BoolVar(&f.set, "set", false, "store the number in the session; --last 0 makes it retain all revisions")
	return c
}

// note notes in the store how a run went. A store that may only be read has no such note.
func note(cmd *cobra.Command, st *turnstone.Store, operation string, began time.Time, report any, problem error) {
	_ = st.NoteMaintenance(cmd.Context(), operation, time.Since(began), report, problem)
}

func (f *pruneFlags) run(cmd *cobra.Command, st *turnstone.Store) error {
	if f.session != "" {
		return f.runOne(cmd, st)
	}
	began := time.Now()
	r, err := st.Prune(cmd.Context(), f.PruneOptions)
	if !f.DryRun {
		note(cmd, st, turnstone.OpPrune, began, r, err)
	}
	if r == nil {
		return err
	}
	if f.asLines {
		return errors.Join(err, asJSON(cmd.OutOrStdout(), r))
	}
	p := printer{w: cmd.OutOrStdout()}
	verb := [2]string{"pruned", "deleted"}
	if f.DryRun {
		verb = [2]string{"would prune", "would delete"}
	}
	p.printf("%s %s of %s\n", verb[0], plural(r.Revisions, "revision"), plural(r.Sessions, "session"))
	for _, id := range r.Deleted {
		p.printf("%s %s\n", verb[1], line(id, 100))
	}
	if len(r.Deleted) > 0 {
		p.printf("%s %s with %s before compression\n", verb[1], plural(len(r.Deleted), "session"), size(r.Bytes))
	}
	return errors.Join(err, p.err)
}

// runOne prunes the session that --session names.
func (f *pruneFlags) runOne(cmd *cobra.Command, st *turnstone.Store) error {
	s, err := session(cmd.Context(), st, f.session)
	if err != nil {
		return err
	}
	keep := head.Retention(f.Revisions)
	if f.set {
		if keep == 0 {
			keep = head.KeepAll
		}
		if err := s.SaveMetadata(cmd.Context(), head.Metadata{Retention: keep}); err != nil {
			return err
		}
	}
	if keep == head.KeepAll {
		return nil
	}
	p := printer{w: cmd.OutOrStdout()}
	moved, err := s.Prune(cmd.Context(), keep)
	if err == nil && !moved {
		p.printf("nothing to prune\n")
	}
	return errors.Join(err, p.err)
}

func (a *app) keep() *cobra.Command {
	var revision uint64
	var release, asLines bool
	c := &cobra.Command{
		Use:     "keep SESSION [NAME]",
		Short:   "Keep a revision under a name, so that prune does not remove it",
		Long:    "Keep a revision under a name, so that prune does not remove it. Without NAME, list the revisions that are kept.",
		Example: "turnstone keep trip paid --revision 2\nturnstone keep trip",
		Args:    cobra.RangeArgs(1, 2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			s, err := session(cmd.Context(), st, args[0])
			switch {
			case err != nil:
				return err
			case len(args) == 1:
				return listKept(cmd, s, asLines)
			case release:
				return s.Release(cmd.Context(), args[1])
			}
			return s.Keep(cmd.Context(), args[1], head.Revision(revision))
		}),
	}
	c.Flags().Uint64Var(&revision, "revision", 0, "the revision to keep; the default is the last one")
	c.Flags().BoolVar(&release, "release", false, "don't keep the revision any more")
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

// listKept prints the revisions that a session keeps by name.
func listKept(cmd *cobra.Command, s *turnstone.Session, asLines bool) error {
	kept, err := s.Kept(cmd.Context())
	p := printer{w: cmd.OutOrStdout()}
	for _, k := range kept {
		if asLines {
			err = errors.Join(err, asJSON(cmd.OutOrStdout(), k))
			continue
		}
		p.printf("%6d  %s\n", k.Revision, line(k.Name, 100))
	}
	return errors.Join(err, p.err)
}

func (a *app) erase() *cobra.Command {
	var children string
	var asLines, yes bool
	c := &cobra.Command{
		Use:   "erase SESSION [NODE…]",
		Short: "Remove a session, or nodes of it, from the store's files",
		Long: "Remove a session, or nodes of it, from the store's files: delete or tombstone, collect and\n" +
			"vacuum. The command prints a receipt that says what was removed and what still holds or\n" +
			"shares the content. Text that a host also put into other sessions, checkpoints or later\n" +
			"messages stays there. A database server keeps the bytes in its files until it overwrites\n" +
			"them, and in its log and backups.",
		Example: "turnstone erase trip msg_2 --yes\nturnstone erase trip/boat --yes",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := policy(children)
			if err != nil {
				return err
			}
			if !yes {
				return usageError{errors.New("erasing can't be undone: confirm with --yes")}
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				before := a.onDisk()
				r, err := runErase(cmd, st, args, p)
				if err != nil {
					return err
				}
				if asLines {
					return asJSON(cmd.OutOrStdout(), r)
				}
				return a.printErasure(cmd.OutOrStdout(), r, before)
			})
		},
	}
	c.Flags().StringVar(&children, "children", "keep", "what happens to sessions that come from it: keep them, refuse to erase, or cascade")
	jsonFlag(c, &asLines)
	c.Flags().BoolVar(&yes, "yes", false, "confirm that the content is to be removed for good")
	return c
}

// runErase erases the session or the nodes that args name.
func runErase(cmd *cobra.Command, st *turnstone.Store, args []string, p turnstone.ChildPolicy) (*turnstone.Erasure, error) {
	progress, finish := steps()
	defer finish()
	o := turnstone.EraseOptions{Progress: progress}
	if len(args) == 1 {
		return st.Erase(cmd.Context(), args[0], p, o)
	}
	s, ids, err := nodes(cmd, st, args)
	if err != nil {
		return nil, err
	}
	return s.Erase(cmd.Context(), o, ids...)
}

// printErasure prints the receipt of an erasure. before is what the store took on disk
// before.
func (a *app) printErasure(w io.Writer, r *turnstone.Erasure, before uint64) error {
	p := printer{w: w}
	a.printVacuum(&p, r.Vacuum, before)
	if len(r.HeldBy) > 0 {
		p.printf("held by    %s\n", line(strings.Join(r.HeldBy, ", "), 400))
	}
	if r.Shared > 0 {
		p.printf("shared     %s (%s) of equal content", plural(r.Shared, "blob"), size(uint64(r.SharedBytes)))
		if len(r.SharedBy) > 0 {
			p.printf(", with %s", line(strings.Join(r.SharedBy, ", "), 400))
		}
		p.printf("\n")
	}
	if r.Uploads > 0 {
		p.printf("uploads    %s of equal content, not committed yet\n", plural(r.Uploads, "blob"))
	}
	return p.err
}
