package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

func (a *app) verify() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "verify",
		Short:   "Check every hash, link, checksum and reference",
		Example: "turnstone verify",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			return runVerify(cmd, st, asLines)
		}),
	}
	jsonFlag(c, &asLines)
	return c
}

// runVerify verifies the store. It returns errDamaged if there are problems.
func runVerify(cmd *cobra.Command, st *turnstone.Store, asLines bool) error {
	progress := bar(-1, "verifying", false)
	began := time.Now()
	v, err := st.Verify(cmd.Context(), turnstone.VerifyOptions{Progress: func(done int) { progress.Set(done) }})
	progress.Finish()
	note(cmd, st, turnstone.OpVerify, began, v, cmp.Or(err, v.Err()))
	if err != nil {
		return err
	}
	if asLines {
		err = asJSON(cmd.OutOrStdout(), verifyLineOf(v))
	} else {
		err = printVerification(cmd.OutOrStdout(), v)
	}
	if !v.OK() {
		err = errors.Join(err, fmt.Errorf("%w: %s", errDamaged, plural(len(v.Problems)+v.More, "problem")))
	}
	return err
}

func printVerification(w io.Writer, v *turnstone.Verification) error {
	p := printer{w: w}
	for _, problem := range v.Problems {
		p.printf("%s\n", clean(problem.Error()))
	}
	p.printf("%s, %s, %s, %s (%d unreferenced), %s\n", plural(v.Sessions, "session"), plural(v.Commits, "commit"),
		plural(v.Nodes, "node"), plural(v.Blobs, "blob"), v.Unreferenced, plural(v.Records, "record"))
	if v.OK() {
		p.printf("every hash, link, checksum and reference is right\n")
	}
	return p.err
}

func (a *app) scrub() *cobra.Command {
	var asLines bool
	var rate byteSize
	var o turnstone.ScrubOptions
	c := &cobra.Command{
		Use:   "scrub",
		Short: "Read all records one after the other, to find those that the disk has spoilt",
		Long: "Read all records one after the other, and check the checksum of each and the hashes of commits and blobs. Unlike\n" +
			"`turnstone verify` the command does not compare records with each other. So it takes little memory, and may be\n" +
			"interrupted: the next one goes on where it was. It runs beside everything else. `turnstone stats` says when the\n" +
			"last complete one began.",
		Example: "turnstone scrub --rate 16MiB --for 1h",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			progress := bar(-1, "scrubbing", false)
			o.Rate, o.Progress = int64(rate), func(records int) { progress.Set(records) }
			r, err := st.Scrub(cmd.Context(), o)
			progress.Finish()
			if r == nil {
				return err
			}
			if asLines {
				err = errors.Join(asJSON(cmd.OutOrStdout(), scrubLineOf(r)), err)
			} else {
				err = errors.Join(printScrub(cmd.OutOrStdout(), r), err)
			}
			found := r.Err()
			if n := len(r.Problems) + r.More; n > 0 {
				found = fmt.Errorf("%w: %s", errDamaged, plural(n, "problem"))
			}
			return errors.Join(err, found)
		}),
	}
	c.Flags().Var(&rate, "rate", "read so many bytes a second at most; default as many as possible")
	c.Flags().DurationVar(&o.Every, "every", 0, "begin no scrub before so long after the last one began")
	c.Flags().DurationVar(&o.For, "for", 0, "end after so long; default when all records were read")
	jsonFlag(c, &asLines)
	return c
}

func printScrub(w io.Writer, r *turnstone.ScrubReport) error {
	p := printer{w: w}
	for _, problem := range r.Problems {
		p.printf("%s\n", clean(problem.Error()))
	}
	p.printf("read       %s, %s\n", plural(r.Records, "record"), size(uint64(r.Bytes)))
	switch {
	case r.Ended:
		p.printf("complete   %s in all records\n", plural(r.LastFound, "problem"))
	case !r.Began.IsZero():
		p.printf("goes on    the scrub that began at %s is not complete\n", moment(r.Began))
	default:
		p.printf("complete   the scrub that began at %s\n", moment(r.LastBegan))
	}
	return p.err
}

func (a *app) stats() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "stats",
		Short:   "Print how much the store holds and how much space that takes",
		Example: "turnstone stats",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			s, err := st.Stats(cmd.Context())
			if err != nil {
				return err
			}
			if asLines {
				return asJSON(cmd.OutOrStdout(), statsLineOf(s, a.onDisk()))
			}
			return printStats(cmd.OutOrStdout(), s, a.onDisk())
		}),
	}
	jsonFlag(c, &asLines)
	return c
}

// printStats prints statistics. allocated is what the files of the store take on
// disk, or 0 if that is unknown.
func printStats(w io.Writer, s *turnstone.Stats, allocated uint64) error {
	p := printer{w: w}
	p.printf("sessions     %d\ncommits      %d\nnodes        %d\nblobs        %d\n", s.Sessions, s.Commits, s.Nodes, s.Blobs)
	p.printf("format       %d\n", s.Format)
	p.printf("segments     %d sealed, %d loose\n", s.Sealed, s.Loose)
	p.printf("logical      %s of payloads, %s of checkpoints\n", size(s.Payload), size(s.Checkpoints))
	p.printf("stored       %s in %s%s\n", size(s.Stored.Total()), plural(s.Stored.Records, "record"), ratio(s.Payload+s.Checkpoints, s.Stored.Total()))
	for _, kind := range slices.Sorted(maps.Keys(s.ByKind)) {
		b := s.ByKind[kind]
		p.printf("  %-10s %s in %s\n", kind, size(b.Total()), plural(b.Records, "record"))
	}
	if allocated > 0 {
		p.printf("on disk      %s allocated%s\n", size(allocated), ratio(s.Payload+s.Checkpoints, allocated))
	}
	if !s.Scrubbed.IsZero() {
		p.printf("scrubbed     all that was written before %s, %s\n", moment(s.Scrubbed), plural(s.Spoilt, "problem"))
	}
	for _, m := range s.Maintenance {
		p.printf("%-12s %s\n", line(m.Operation, 12), line(said(&m), 1000))
	}
	for _, u := range s.Usage {
		p.printf("usage        %s\n", tokens(u))
	}
	return p.err
}

// said says how maintenance went the last time: when, for how long, and the numbers of its report that are not zero.
func said(m *head.Maintenance) string {
	out := moment(m.Ended) + ", took " + m.Took.Round(time.Millisecond).String()
	for _, name := range slices.Sorted(maps.Keys(m.Numbers)) {
		if n := m.Numbers[name]; n > 0 {
			out += fmt.Sprintf(", %s %d", name, n)
		}
	}
	if m.Problem != "" {
		out += ", problem: " + m.Problem
	}
	return out
}

// ratio says how much less than the logical bytes the stored ones are, or nothing if
// they are not less.
func ratio(logical, stored uint64) string {
	if stored == 0 || logical <= stored {
		return ""
	}
	return fmt.Sprintf(", %.2f times smaller", float64(logical)/float64(stored))
}
