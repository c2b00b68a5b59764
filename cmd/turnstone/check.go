package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
)

func (a *app) verify() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "verify",
		Short:   "Check every hash, link, checksum and reference",
		Example: "turnstone verify",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			progress := bar(-1, "verifying", false)
			v, err := st.Verify(cmd.Context(), turnstone.VerifyOptions{Progress: func(done int) { progress.Set(done) }})
			progress.Finish()
			if err != nil {
				return err
			}
			found := fmt.Errorf("%w: %s", errDamaged, plural(len(v.Problems)+v.More, "problem"))
			if v.OK() {
				found = nil
			}
			if asLines {
				l := verifyLine{
					Sessions: v.Sessions, Commits: v.Commits, Nodes: v.Nodes, Blobs: v.Blobs, Unreferenced: v.Unreferenced, Condemned: v.Condemned, Records: v.Records,
					Problems: []string{}, More: v.More,
				}
				for _, problem := range v.Problems {
					l.Problems = append(l.Problems, problem.Error())
				}
				return errors.Join(asJSON(cmd.OutOrStdout(), l), found)
			}
			p := printer{w: cmd.OutOrStdout()}
			for _, problem := range v.Problems {
				p.printf("%s\n", clean(problem.Error()))
			}
			p.printf("%s, %s, %s, %s (%d unreferenced), %s\n", plural(v.Sessions, "session"), plural(v.Commits, "commit"),
				plural(v.Nodes, "node"), plural(v.Blobs, "blob"), v.Unreferenced, plural(v.Records, "record"))
			if found == nil {
				p.printf("every hash, link, checksum and reference is right\n")
			}
			return errors.Join(p.err, found)
		}),
	}
	jsonFlag(c, &asLines)
	return c
}

func (a *app) stats() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "stats",
		Short:   "Say what the store holds and what that takes",
		Example: "turnstone stats",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			s, err := st.Stats(cmd.Context())
			if err != nil {
				return err
			}
			allocated := a.onDisk()
			if asLines {
				l := statsLine{
					Sessions: s.Sessions, Commits: s.Commits, Nodes: s.Nodes, Blobs: s.Blobs, Sealed: s.Sealed, Loose: s.Loose, Deleted: s.Deleted,
					Payload: s.Payload, Checkpoints: s.Checkpoints, Records: s.Stored.Records, Stored: s.Stored.Total(), ByKind: map[string]kindLine{},
					Allocated: allocated, Usage: usageLines(s.Usage),
				}
				for kind, b := range s.ByKind {
					l.ByKind[kind] = kindLine{Records: b.Records, Stored: b.Total()}
				}
				return asJSON(cmd.OutOrStdout(), l)
			}
			p := printer{w: cmd.OutOrStdout()}
			p.printf("sessions     %d\ncommits      %d\nnodes        %d\nblobs        %d\n", s.Sessions, s.Commits, s.Nodes, s.Blobs)
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
			for _, u := range s.Usage {
				p.printf("usage        %s\n", tokens(u))
			}
			return p.err
		}),
	}
	jsonFlag(c, &asLines)
	return c
}

func ratio(logical, stored uint64) string {
	if stored == 0 || logical <= stored {
		return ""
	}
	return fmt.Sprintf(", %.2f times smaller", float64(logical)/float64(stored))
}
