package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/push"
)

// tokenVariable names the environment variable with the token for a server: other users see the arguments of a command.
const tokenVariable = "TURNSTONE_TOKEN"

// A pushing is what `turnstone push` and `turnstone pull` are told to do.
type pushing struct {
	push.Options
	asLines       bool
	since         age
	namespace, ca string // of the other store
}

func (p *pushing) flags(c *cobra.Command) {
	c.Flags().BoolVar(&p.All, "all", false, "all sessions")
	c.Flags().StringVar(&p.Group, "group", "", "all sessions of this group and of the groups below it")
	c.Flags().Var(&p.since, "since", "of --group or --all, those that were updated within this time, for example 36h or 30d")
	c.Flags().StringVar(&p.As, "as", "", "the id that the session gets there, if it is one")
	c.Flags().StringVar(&p.Branch, "branch", "", "if a session has diverged, make what comes a branch of it, whose end is kept under this name")
	p.other(c)
}

// other has the flags about the other store.
func (p *pushing) other(c *cobra.Command) {
	c.Flags().StringVar(&p.namespace, "namespace", "", "the namespace of the other store")
	c.Flags().StringVar(&p.ca, "ca", "", "file of the certificates of the authority that has signed the server's, in PEM")
	jsonFlag(c, &p.asLines)
}

func (a *app) push() *cobra.Command {
	p := &pushing{}
	c := &cobra.Command{
		Use:   "push [SESSION]... STORE",
		Short: "Bring sessions to another store",
		Long: "Bring sessions to another store, which gets what it lacks of them: revisions, branches, checkpoints, attachments,\n" +
			"records and metadata. A session only goes forward. If it has other commits there than here, it stays as it is, and\n" +
			"the command fails when it has pushed the others; --as gives it an id of its own there, and --branch makes what is\n" +
			"here a branch of what is there. Neither a deletion nor a new id is pushed.\n" +
			"STORE is what --store takes; or ssh://[USER@]HOST[:PORT]/DIR, where the command ssh starts the turnstone that is in\n" +
			"the PATH there, or the file that ?command=FILE names; or a server, https://HOST:PORT, http://HOST:PORT or\n" +
			"unix:SOCKET, for which " + tokenVariable + " has a token with the scopes read and write.\n" +
			"The command can be repeated, and one that was interrupted goes on.",
		Example: "turnstone push trip ssh://ada@laptop/~/store\nturnstone push --all ssh://ada@laptop/~/store",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Sessions = args[:len(args)-1]
			to, err := a.at(args[len(args)-1], p)
			if err != nil {
				return err
			}
			return p.run(cmd, a, to, true)
		},
	}
	p.flags(c)
	return c
}

func (a *app) pull() *cobra.Command {
	p := &pushing{}
	c := &cobra.Command{
		Use:   "pull STORE [SESSION]...",
		Short: "Bring sessions from another store",
		Long: "Bring sessions from another store: what `turnstone push` does, the other way. If a session has other commits there\n" +
			"than here, the one here stays as it is; --as gives the other one an id of its own, and --branch makes what is there a\n" +
			"branch of what is here. STORE is what `turnstone push` takes.",
		Example: "turnstone pull ssh://ada@laptop/~/store --all\nturnstone pull ssh://ada@laptop/~/store trip --as trip/laptop",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Sessions = args[1:]
			from, err := a.at(args[0], p)
			if err != nil {
				return err
			}
			return p.run(cmd, from, a, false)
		},
	}
	p.flags(c)
	return c
}

func (a *app) clone() *cobra.Command {
	p := &pushing{}
	c := &cobra.Command{
		Use:   "clone STORE [DIR]",
		Short: "Make a store with all sessions of another one",
		Long: "Make a store with all sessions of another one, in DIR, or without it where --store says. An interrupted command can be repeated,\n" +
			"and `turnstone pull STORE --all` brings the store up to date later. STORE is what `turnstone push` takes. `turnstone copy`\n" +
			"copies all records of a database, with all namespaces, tombstones and the feed.",
		Example: "turnstone clone ssh://ada@laptop/~/store laptop.pebble",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := *a
			if len(args) == 2 {
				to.url = args[1]
			}
			from, err := a.at(args[0], p)
			if err != nil {
				return err
			}
			p.All = true
			return p.run(cmd, from, &to, false)
		},
	}
	p.other(c)
	return c
}

// A side is a store that is pushed from or to: that of an *app, or one behind a server.
type side interface {
	peer(ctx context.Context, mustExist bool, f func(push.Peer) error) error
}

// peer calls f with the store.
func (a *app) peer(ctx context.Context, mustExist bool, f func(push.Peer) error) error {
	return a.with(ctx, mustExist, func(st *turnstone.Store) error { return f(st) })
}

// at returns the store at an address.
func (a *app) at(address string, p *pushing) (side, error) {
	for _, begin := range []string{"ssh://", "https://", "http://", "unix:"} {
		if strings.HasPrefix(address, begin) {
			return &remote{a, address, p}, nil
		}
	}
	if p.ca != "" {
		return nil, usageError{fmt.Errorf("--ca is for a server, and %s is none", open.Redacted(address))}
	}
	other := *a
	other.url, other.onlyRead, other.options.Namespace = address, false, p.namespace
	return &other, nil
}

// A remote is a store behind a server.
type remote struct {
	a       *app
	address string
	p       *pushing
}

func (r *remote) peer(ctx context.Context, mustExist bool, f func(push.Peer) error) (err error) {
	// A server that is away, or loses a connection, is asked again for as long as a store that is not free.
	patience := min(max(r.a.wait, 100*time.Millisecond), 30*time.Second)
	o := &client.Options{Token: os.Getenv(tokenVariable), Namespace: r.p.namespace, MustExist: mustExist, Patience: patience}
	if r.p.ca != "" {
		text, err := os.ReadFile(r.p.ca)
		if err != nil {
			return err
		}
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		if !o.TLS.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s has no certificate in PEM", r.p.ca)
		}
	}
	c, err := client.Open(ctx, r.address, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return f(c)
}

// run pushes from one store to the other. outward says that from is the store of the command.
func (p *pushing) run(cmd *cobra.Command, from, to side, outward bool) error {
	switch named := len(p.Sessions) > 0; {
	case named && (p.All || p.Group != ""), p.All && p.Group != "", !named && !p.All && p.Group == "":
		return usageError{fmt.Errorf("name sessions, or --group, or --all, besides the store; usage: `%s`", cmd.UseLine())}
	case named && p.since > 0:
		return usageError{errors.New("--since is for --group or --all, and sessions are named")}
	case p.As != "" && len(p.Sessions) != 1:
		return usageError{errors.New("--as is for one session")}
	}
	if p.since > 0 {
		p.ChangedSince = time.Now().Add(-time.Duration(p.since))
	}
	ctx := cmd.Context()
	out := printer{w: cmd.OutOrStdout()}
	p.Progress = func(s turnstone.Unbundled) {
		if !p.asLines {
			printUnbundled(&out, &s)
		} else if out.err == nil {
			out.err = asJSON(out.w, s)
		}
	}
	r := &push.Report{}
	err := from.peer(ctx, true, func(source push.Peer) error {
		if some, err := p.any(ctx, source); err != nil || !some {
			return err // before a store is made
		}
		return to.peer(ctx, false, func(target push.Peer) (err error) {
			r, err = push.Sessions(ctx, source, target, p.Options)
			return err
		})
	})
	if err != nil {
		err = explained(err, outward)
	}
	if err == nil || len(r.Sessions)+r.Same > 0 {
		if p.asLines && out.err == nil {
			out.err = asJSON(out.w, pushed{r.Same, r.Bytes})
		} else if !p.asLines {
			out.printf("%s came, %s; %d had all already\n", plural(len(r.Sessions), "session"), size(uint64(r.Bytes)), r.Same)
		}
	}
	return errors.Join(err, out.err)
}

// pushed is the last line of JSON about a push.
type pushed struct {
	Same  int   `json:"same"`  // sessions that had all already
	Bytes int64 `json:"bytes"` // that were sent
}

// any reports whether there is any session to push, and fails if none of those that are named exists.
func (p *pushing) any(ctx context.Context, source push.Peer) (bool, error) {
	if len(p.Sessions) == 0 {
		page, err := source.List(ctx, turnstone.ListOptions{Group: p.Group, Limit: 1})
		return len(page.Sessions) > 0, err
	}
	for some := range slices.Chunk(p.Sessions, turnstone.MaxPage) {
		of := make([]turnstone.StandingQuery, len(some))
		for i, id := range some {
			of[i].ID = id
		}
		if found, err := source.Standings(ctx, of...); err != nil || len(found) > 0 {
			return true, err
		}
	}
	return false, fmt.Errorf("%w: %q", turnstone.ErrSessionNotFound, p.Sessions)
}

// explained says of each session that has diverged where it stands here and there, as who gave the command sees it: of
// a push, the other store is there.
func explained(err error, outward bool) error {
	var d *turnstone.DivergedError
	if !errors.As(err, &d) {
		return err
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, one := range all.Unwrap() {
			out = append(out, explained(one, outward))
		}
		return errors.Join(out...)
	}
	seen := *d
	if outward {
		seen.Here, seen.There = d.There, d.Here
	}
	return fmt.Errorf("%w; --branch or --as keeps both", &seen)
}
