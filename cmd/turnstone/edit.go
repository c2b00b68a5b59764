package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

func (a *app) fork() *cobra.Command {
	var r turnstone.Request
	var revisions bool
	c := &cobra.Command{
		Use:   "fork PLACE NEW",
		Short: "Make a session that goes on from a place in another one",
		Long: "Make the session NEW, which goes on from a place in another session and shares the history before it.\n" +
			"Its checkpoint is that of the revision, or of the last complete turn up to the node. With --revisions it\n" +
			"has each revision of the other session as its own.\n" +
			placeForms,
		Example: "turnstone fork trip@1 trip/ship --name 'By ship'",
		Args:    cobra.ExactArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			return runFork(cmd, st, args[0], args[1], r, revisions)
		}),
	}
	c.Flags().StringVar(&r.Name, "name", "", "name of the new session")
	c.Flags().StringVar(&r.Group, "group", "", "group of the new session, names between slashes")
	c.Flags().BoolVar(&r.Detached, "detached", false, "record the parent, but begin with an empty history")
	c.Flags().BoolVar(&r.NoCheckpoint, "no-checkpoint", false, "begin without a checkpoint, also where it was pruned")
	c.Flags().BoolVar(&revisions, "revisions", false, "commit each turn of SESSION anew, so that the new session has all of its revisions")
	c.MarkFlagsMutuallyExclusive("detached", "no-checkpoint", "revisions")
	a.complete(c)
	return c
}

// runFork creates the session id, which goes on from the place that name stands for. r
// has the name and the kind of the fork. If revisions is set, the session is a clone.
func runFork(cmd *cobra.Command, st *turnstone.Store, name, id string, r turnstone.Request, revisions bool) error {
	ctx := cmd.Context()
	p, err := find(ctx, st, name)
	if err != nil {
		return err
	}
	r.ID = id
	if revisions {
		if !p.bare {
			return usageError{errors.New("--revisions needs SESSION without a revision or node")}
		}
		c, err := turnstone.Clone(ctx, st.Factory(), p.ID(), r)
		if err != nil {
			return err
		}
		i, err := c.Info(ctx)
		out := printer{w: cmd.OutOrStdout()}
		out.printf("%s has the %s of %s\n", line(id, 60), plural(uint64(i.Revision), "revision"), line(name, 60))
		return errors.Join(err, out.err)
	}
	r.Parent = p.ID()
	if r.ForkAt = p.scope.At; r.ForkAt == 0 {
		if r.ForkNode, err = p.leaf(ctx); err != nil {
			return err
		}
	}
	s, created, err := st.Create(ctx, r)
	if err != nil {
		return err
	}
	if !created {
		return fmt.Errorf("%w: %q", turnstone.ErrExists, r.ID)
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	out := printer{w: cmd.OutOrStdout()}
	out.printf("%s goes on from %s, with %s\n", line(s.ID(), 60), line(name, 60), plural(len(state.Nodes), "node"))
	return out.err
}

func (a *app) rewind() *cobra.Command {
	var empty, parts bool
	c := &cobra.Command{
		Use:   "rewind PLACE",
		Short: "Move a session's leaf back, so that the next turn goes on from there",
		Long: "Move a session's leaf back to a revision or a node, so that the next turn goes on from there. Nothing is\n" +
			"lost: the nodes after it stay as a branch.\n" + placeForms,
		Example: "turnstone rewind trip@2 --parts\nturnstone rewind trip/ship --empty",
		Args:    cobra.ExactArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			p, err := find(cmd.Context(), st, args[0])
			if err != nil {
				return err
			}
			switch {
			case !p.bare && empty:
				return usageError{errors.New("--empty needs SESSION without a revision or node")}
			case p.bare && !empty:
				return usageError{errors.New("no target: give SESSION@REVISION, SESSION:NODE, or --empty")}
			case parts && p.scope.At == 0:
				return usageError{errors.New("--parts needs SESSION@REVISION")}
			}
			return runRewind(cmd, p, parts)
		}),
	}
	c.Flags().BoolVar(&empty, "empty", false, "move it to before the first node")
	c.Flags().BoolVar(&parts, "parts", false, "also restore the checkpoint parts of that revision")
	a.complete(c)
	return c
}

// runRewind moves the leaf of a session to p, or to before the first node if p is bare.
func runRewind(cmd *cobra.Command, p place, parts bool) error {
	ctx := cmd.Context()
	i, err := p.Info(ctx)
	if err != nil {
		return err
	}
	in := turnstone.Commit{Expected: i.Revision, Leaf: turnstone.RefNone()}
	if !p.bare {
		leaf, err := p.leaf(ctx)
		if err != nil {
			return err
		}
		if !leaf.IsZero() {
			in.Leaf = turnstone.RefTo(leaf)
		}
	}
	if parts {
		if err := restore(ctx, &in, p, p.Session); err != nil {
			return err
		}
	}
	r, err := p.Commit(ctx, in)
	if err != nil {
		return err
	}
	leaf := "empty"
	if !r.Leaf.IsZero() {
		leaf = "at " + short(r.Leaf)
	}
	out := printer{w: cmd.OutOrStdout()}
	out.printf("%s is %s, at revision %d\n", line(p.ID(), 60), leaf, r.Revision)
	return out.err
}

// restore makes in a commit that gives s the checkpoint parts of the revision that p
// names.
func restore(ctx context.Context, in *turnstone.Commit, p place, s *turnstone.Session) error {
	want, err := p.Checkpoint(ctx, p.scope.At)
	if err != nil {
		return err
	}
	now, err := s.Checkpoint(ctx, 0)
	if err != nil {
		return err
	}
	in.Checkpoint = map[string][]byte{}
	for name, content := range want {
		if have, ok := now[name]; !ok || !bytes.Equal(have, content) {
			in.Checkpoint[name] = content
		}
	}
	for name := range now {
		if _, stays := want[name]; !stays {
			in.Drop = append(in.Drop, name)
		}
	}
	return nil
}

func (a *app) rename() *cobra.Command {
	c := &cobra.Command{
		Use:     "rename SESSION NEW",
		Short:   "Give a session another id",
		Long:    "Give a session another id, atomically. Its children get the new id as their parent. To set the name that people\nread, use `turnstone label --name`.",
		Example: "turnstone rename trip/ship trip/boat",
		Args:    cobra.ExactArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			s, err := exact(cmd.Context(), st, args[0])
			if err != nil {
				return err
			}
			return s.Rename(cmd.Context(), args[1])
		}),
	}
	a.complete(c)
	return c
}

func (a *app) label() *cobra.Command {
	var m head.Metadata
	var custom string
	var fields []string
	var asLines bool
	c := &cobra.Command{
		Use:     "label SESSION [KEY=VALUE…]",
		Short:   "Set or list the labels of a session, or set its name, model, directory, group or custom metadata",
		Long:    "Set labels of a session; KEY= removes a label. Without labels and flags, list the labels. Fields that --unset\nnames are emptied before the others are set.",
		Example: "turnstone label trip rating=good --name 'Kyoto in April'\nturnstone label trip\nturnstone label trip --unset name",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if m.Labels, err = parseLabels(args[1:]); err != nil {
				return err
			}
			if err := refuseEmptyFlags(cmd, "name", "model", "cwd", "group", "custom"); err != nil {
				return err
			}
			m.Custom = json.RawMessage(custom)
			empty, err := parseFields(fields)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				s, err := session(cmd.Context(), st, args[0])
				if err != nil {
					return err
				}
				if len(args) > 1 || slices.ContainsFunc([]string{"name", "model", "cwd", "group", "custom", "unset"}, cmd.Flags().Changed) {
					return s.SaveMetadata(cmd.Context(), m, empty...)
				}
				return listLabels(cmd, s, asLines)
			})
		},
	}
	c.Flags().StringVar(&m.Name, "name", "", "set the name that people read")
	c.Flags().StringVar(&m.Model, "model", "", "set the model")
	c.Flags().StringVar(&m.Cwd, "cwd", "", "set the working directory")
	c.Flags().StringVar(&m.Group, "group", "", "set the group, names between slashes")
	c.Flags().StringVar(&custom, "custom", "", "set the custom metadata, any JSON")
	c.Flags().StringSliceVar(&fields, "unset", nil, "fields to empty: one of "+unsettable+", or several of them")
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

// parseLabels parses arguments of the form KEY=VALUE.
func parseLabels(args []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range args {
		key, value, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			return nil, usageError{fmt.Errorf("%q is not a label: want KEY=VALUE", l)}
		}
		labels[key] = value
	}
	return labels, nil
}

// refuseEmptyFlags returns an error if one of the flags was given an empty value.
func refuseEmptyFlags(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return usageError{fmt.Errorf("--%s is empty: use --unset %s to empty it", name, name)}
		}
	}
	return nil
}

// unsettable are the fields that --unset can name.
const unsettable = "name, model, cwd, group, labels, retention, custom, hostCreated, hostUpdated, all"

// parseFields parses the values of --unset.
func parseFields(names []string) ([]head.Field, error) {
	fields := make([]head.Field, len(names))
	for i, name := range names {
		if fields[i] = head.Field(name); !fields[i].Known() {
			return nil, usageError{fmt.Errorf("--unset must be one of %s, not %q", unsettable, name)}
		}
	}
	return fields, nil
}

// listLabels prints the labels of a session, or all about it as JSON.
func listLabels(cmd *cobra.Command, s *turnstone.Session, asLines bool) error {
	i, err := s.Info(cmd.Context())
	if err != nil {
		return err
	}
	if asLines {
		return asJSON(cmd.OutOrStdout(), i)
	}
	out := printer{w: cmd.OutOrStdout()}
	for _, key := range slices.Sorted(maps.Keys(i.Labels)) {
		out.printf("%s=%s\n", line(key, 256), line(i.Labels[key], 256))
	}
	return out.err
}

// labels returns all labels on one line.
func labels(all map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, key+"="+all[key])
	}
	return strings.Join(out, " ")
}

func (a *app) tombstone() *cobra.Command {
	c := &cobra.Command{
		Use:     "tombstone SESSION NODE…",
		Short:   "Hide nodes from every read of a session",
		Long:    "Hide nodes from every read of a session; their children are linked past them. `turnstone vacuum` removes\ntheir content. NODE is the beginning of a node's id, or its key.",
		Example: "turnstone tombstone trip msg_3",
		Args:    cobra.MinimumNArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			s, ids, err := nodes(cmd, st, args)
			if err != nil {
				return err
			}
			return s.Tombstone(cmd.Context(), ids...)
		}),
	}
	a.complete(c)
	return c
}

// nodes finds the session and the nodes that args name: SESSION NODE…
func nodes(cmd *cobra.Command, st *turnstone.Store, args []string) (*turnstone.Session, []graph.ID, error) {
	s, err := exact(cmd.Context(), st, args[0])
	if err != nil {
		return nil, nil, err
	}
	ids := make([]graph.ID, len(args)-1)
	for i, name := range args[1:] {
		if ids[i], err = node(cmd.Context(), s, name); err != nil {
			return nil, nil, err
		}
	}
	return s, ids, nil
}

// policies has the values of --children.
var policies = map[string]turnstone.ChildPolicy{
	"keep": turnstone.KeepChildren, "refuse": turnstone.RefuseChildren, "cascade": turnstone.CascadeChildren,
}

// policy parses the value of --children.
func policy(children string) (turnstone.ChildPolicy, error) {
	p, ok := policies[children]
	if !ok {
		return p, usageError{fmt.Errorf("--children must be keep, refuse or cascade, not %q", children)}
	}
	return p, nil
}

func (a *app) rm() *cobra.Command {
	var children string
	c := &cobra.Command{
		Use:   "rm SESSION…",
		Short: "Delete sessions",
		Long: "Delete sessions: no read or list shows them any more. `turnstone gc` and `vacuum` reclaim their space,\n" +
			"except for what forks share. Ids can't be shortened.",
		Example: "turnstone rm trip/train",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := policy(children)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				return deleteSessions(cmd.Context(), st, args, p)
			})
		},
	}
	c.Flags().StringVar(&children, "children", "keep", "what happens to sessions that come from it: keep them, refuse to delete, or cascade")
	a.complete(c)
	return c
}

// deleteSessions deletes sessions. It deletes none if one of them does not exist.
func deleteSessions(ctx context.Context, st *turnstone.Store, ids []string, p turnstone.ChildPolicy) error {
	sessions := make([]*turnstone.Session, len(ids))
	for i, id := range ids {
		var err error
		if sessions[i], err = exact(ctx, st, id); err != nil {
			return err
		}
	}
	for _, s := range sessions {
		if err := s.Delete(ctx, turnstone.AnyRevision, p); err != nil {
			return err
		}
	}
	return nil
}
