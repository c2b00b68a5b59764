package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/backup/bucket"
	"github.com/turnstonedb/turnstone/push"
)

const targetHelp = "TARGET is a directory, or a place in an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azblob://CONTAINER/PREFIX,\n" +
	"with the credentials that the clients of AWS, Google and Azure find. S3 of others: s3://BUCKET?endpoint=URL&region=…&use_path_style=true."

// withTarget calls f with the target at an address, which is encrypted if there is a keyring.
func (a *app) withTarget(ctx context.Context, address string, f func(backup.Target) error) error {
	ring, err := a.ring(ctx)
	if err != nil {
		return err
	}
	t, closer, err := bucket.Open(ctx, address)
	if err != nil {
		return err
	}
	if ring != nil {
		t = backup.Encrypted(t, ring, "")
	}
	return errors.Join(f(t), closer.Close())
}

func (a *app) backup() *cobra.Command {
	var o backup.Options
	var every, keep, generationEvery age
	var asLines bool
	c := &cobra.Command{
		Use:   "backup TARGET",
		Short: "Copy what has changed to a directory or an object store",
		Long: "Copy what has changed in the sessions since the last backup to the same place. `turnstone restore` restores them as they\n" +
			"were at the end of any backup that is kept. Hosts may go on meanwhile. With --every, the command goes on until it is interrupted.\n" +
			"If the feed tells of records (`turnstone feed on --records`), it says which sessions have changed; otherwise all are\n" +
			"compared. Each generation begins with a copy of all sessions. With --keep, old generations are removed, and with them\n" +
			"the content that was erased in the store since. With --keys the backup is encrypted.\n" + targetHelp,
		Example: "turnstone backup safe\nturnstone rewind trip@3\nturnstone backup safe",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.NewGeneration && every > 0 {
				return usageError{errors.New("--new-generation is for one backup, and --every is for many")}
			}
			o.Keep, o.GenerationEvery, o.Every = time.Duration(keep), time.Duration(generationEvery), time.Duration(every)
			out := printer{w: cmd.OutOrStdout()}
			told := func(r *backup.Report) {
				if r.Damaged != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "turnstone: a new generation begins, as the last one is damaged:", clean(r.Damaged.Error()))
				}
				for _, err := range r.Failed {
					fmt.Fprintln(cmd.ErrOrStderr(), "turnstone:", clean(err.Error()))
				}
				if asLines {
					out.err = errors.Join(out.err, asJSON(out.w, r))
					return
				}
				printBackup(&out, r)
			}
			return a.withTarget(cmd.Context(), args[0], func(to backup.Target) error {
				return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
					if every == 0 {
						r, err := backup.Run(cmd.Context(), st, to, o)
						if r != nil {
							told(r)
						}
						if err != nil {
							return err
						}
						if len(r.Failed) > 0 {
							return fmt.Errorf("%w: the backup has what could be read, and of the rest what it had before", errDamaged)
						}
						return out.err
					}
					o.Report = func(r *backup.Report, err error) {
						if err != nil {
							fmt.Fprintln(cmd.ErrOrStderr(), "turnstone:", clean(err.Error()))
						}
						if r == nil {
							return
						} else if r.Sessions+r.Gone > 0 || r.New || len(r.Failed) > 0 {
							told(r)
						}
					}
					if err := backup.Follow(cmd.Context(), st, to, o); !errors.Is(err, context.Canceled) {
						return err
					}
					return out.err // It was interrupted, which is how it ends.
				})
			})
		},
	}
	c.Flags().Var(&every, "every", "go on, with this time between two backups, for example 1m")
	c.Flags().Var(&keep, "keep", "how long each time is to be restored, for example 30d; default forever")
	c.Flags().Var(&generationEvery, "generation-every", "when to begin a new generation; default 7d")
	c.Flags().BoolVar(&o.NewGeneration, "new-generation", false, "begin a new generation")
	jsonFlag(c, &asLines)
	c.AddCommand(a.backupList(), a.backupVerify())
	return c
}

func printBackup(p *printer, r *backup.Report) {
	what := "run"
	if r.New {
		what = "new generation, run"
	}
	if r.Sessions+r.Gone == 0 && !r.New {
		p.printf("%s  %s %d: nothing has changed since", moment(r.Time), what, r.Run)
	} else {
		p.printf("%s  %s %d: %s changed, %d gone, %s", moment(r.Time), what, r.Run, plural(r.Sessions, "session"), r.Gone, size(uint64(r.Bytes)))
	}
	if r.Expired > 0 {
		p.printf(", %s removed", plural(r.Expired, "old generation"))
	}
	p.printf("\n")
}

func (a *app) backupList() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "list TARGET",
		Short:   "List what a backup can restore",
		Long:    "List the generations of a backup, the oldest first, with the times that can be restored from each.",
		Example: "turnstone backup list safe",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTarget(cmd.Context(), args[0], func(of backup.Target) error {
				all, err := backup.Generations(cmd.Context(), of)
				if err != nil {
					return err
				}
				p := printer{w: cmd.OutOrStdout()}
				for i := range all {
					g := &all[i]
					switch {
					case asLines:
						p.err = errors.Join(p.err, asJSON(p.w, g))
					case g.Problem != "":
						p.printf("%s  %s\n", g.Name, clean(g.Problem))
					case g.Complete == 0:
						p.printf("%s  not complete\n", g.Name)
					default:
						p.printf("%s to %s  %s\n", moment(g.First), moment(g.Last), plural(g.Complete, "run"))
					}
				}
				return p.err
			})
		},
	}
	jsonFlag(c, &asLines)
	return c
}

func (a *app) backupVerify() *cobra.Command {
	var asLines bool
	var dir string
	c := &cobra.Command{
		Use:   "verify TARGET",
		Short: "Read all of a backup, and restore it for a trial",
		Long: "Read all of a backup, compute every hash, and restore the last state of each generation for a trial, without leaving\n" +
			"anything. List what is damaged; then the exit code is 4.",
		Example: "turnstone backup verify safe",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTarget(cmd.Context(), args[0], func(of backup.Target) error {
				v, err := backup.Verify(cmd.Context(), of, backup.VerifyOptions{Dir: dir})
				if err != nil {
					return err
				}
				p := printer{w: cmd.OutOrStdout()}
				if asLines {
					line := verifiedBackup{Verified: *v}
					for _, problem := range v.Problems {
						line.Problems = append(line.Problems, problem.Error())
					}
					p.err = asJSON(p.w, line)
				} else {
					for _, problem := range v.Problems {
						p.printf("%s\n", clean(problem.Error()))
					}
					p.printf("%s, %s, %s, %s, %s\n", plural(len(v.Generations), "generation"), plural(v.Bundles, "bundle"), size(uint64(v.Bytes)), plural(v.Sessions, "session"), plural(len(v.Problems), "problem"))
				}
				if p.err == nil && len(v.Problems) > 0 {
					return fmt.Errorf("%w: %s", backup.ErrTarget, plural(len(v.Problems), "problem"))
				}
				return p.err
			})
		},
	}
	c.Flags().StringVar(&dir, "temp", "", "the directory for what does not fit into memory; default that of the system")
	jsonFlag(c, &asLines)
	return c
}

// verifiedBackup is the line of JSON about a backup that was verified.
type verifiedBackup struct {
	backup.Verified
	Problems []string `json:"problems,omitempty"`
}

// A when is a flag with a point in time.
type when struct{ time.Time }

func (w *when) String() string {
	if w.IsZero() {
		return ""
	}
	return w.Format(time.RFC3339)
}

func (w *when) Type() string { return "time" }

// Set takes a time of RFC 3339, one of this machine's zone without the zone, or a day, which stands for its end.
func (w *when) Set(text string) error {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			if len(text) == len("2006-01-02 15:04:05") { // as it is printed: within that second
				t = t.Add(time.Second - 1)
			}
			w.Time = t
			return nil
		}
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		w.Time = t.AddDate(0, 0, 1).Add(-1)
		return nil
	}
	return fmt.Errorf("want a time as 2026-04-01 09:30:00, 2026-04-01T09:30:00Z or 2026-04-01, and %q is none", text)
}

func (a *app) restore() *cobra.Command {
	var o backup.RestoreOptions
	var at when
	var asLines bool
	p := &pushing{}
	var to string
	c := &cobra.Command{
		Use:   "restore TARGET [SESSION]...",
		Short: "Bring sessions back from a backup",
		Long: "Bring sessions back from a backup, all or those that are named, as they were at the end of the last backup, or of the last\n" +
			"one before --at. A session that exists goes on from where it is, if it was there once; if it is further, it stays, and\n" +
			"--as makes the one of the backup beside it. What was erased since does not come back. The command can be repeated.\n" +
			"With --to, restore to a server or another store instead of the one of --store; see `turnstone push`.\n" + targetHelp,
		Example: "turnstone restore safe trip --as trip/before\nturnstone restore safe --to restored.pebble",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Sessions, o.At = args[1:], at.Time
			if o.As != "" && len(o.Sessions) != 1 {
				return usageError{errors.New("--as is for one session")}
			}
			var target side = a
			if to != "" {
				var err error
				if target, err = a.at(to, p); err != nil {
					return err
				}
			}
			out := printer{w: cmd.OutOrStdout()}
			o.Progress = func(s turnstone.Unbundled) {
				if !asLines {
					printUnbundled(&out, &s)
				}
			}
			return a.withTarget(cmd.Context(), args[0], func(from backup.Target) error {
				all, err := backup.Generations(cmd.Context(), from)
				reaches := func(g backup.Generation) bool {
					return g.Problem != "" || g.Complete > 0 && (o.At.IsZero() || !g.First.After(o.At))
				}
				if err == nil && !slices.ContainsFunc(all, reaches) {
					return backup.ErrNoBackup // before a store is made
				}
				return target.peer(cmd.Context(), false, func(st push.Peer) error {
					r, err := backup.Restore(cmd.Context(), from, st, o)
					if r.Run > 0 && asLines {
						out.err = errors.Join(out.err, asJSON(out.w, r))
					} else if r.Run > 0 {
						for _, id := range r.Erased {
							out.printf("%s  was erased, and stays so\n", clean(id))
						}
						out.printf("%s came, as of %s; %d had all already\n", plural(len(r.Sessions), "session"), moment(r.Time), r.Same)
					}
					return errors.Join(explained(err, false), out.err)
				})
			})
		},
	}
	c.Flags().Var(&at, "at", "restore what was there at this time, for example '2026-04-01 09:30:00'")
	c.Flags().StringVar(&o.As, "as", "", "the id that the session gets, if it is one")
	c.Flags().StringVar(&to, "to", "", "restore to this store or server")
	c.Flags().StringVar(&p.namespace, "namespace", "", "the namespace of the store that --to names")
	c.Flags().StringVar(&p.ca, "ca", "", "file of the certificates of the authority that has signed the server's, in PEM")
	c.Flags().StringVar(&o.Dir, "temp", "", "the directory for what does not fit into memory; default that of the system")
	jsonFlag(c, &asLines)
	return c
}
