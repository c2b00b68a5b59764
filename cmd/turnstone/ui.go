package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/cmd/turnstone/ui"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/search"
	"github.com/turnstonedb/turnstone/server"
)

// uiAddress is where `turnstone ui` listens, unless that is in use.
const uiAddress = "127.0.0.1:7420"

func (a *app) ui() *cobra.Command {
	s := serving{ui: true, mustExist: true}
	c := &cobra.Command{
		Use:   "ui",
		Short: "Show the store in a browser",
		Long: "Serve pages that show the store, to a browser on this machine: sessions as conversations, which follow what is\n" +
			"committed, their histories and branches, checkpoints, records, attachments and differences. The pages ask for the token\n" +
			"that the command prints, and load nothing from elsewhere. With --read-only they change nothing. `turnstone serve --ui`\n" +
			"serves the same pages to other machines.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.log = cmd.ErrOrStderr()
			return a.runUI(cmd, &s)
		},
	}
	c.Flags().StringVar(&s.listen, "listen", "", "where: HOST:PORT of this machine; default "+uiAddress+", or another port if that is in use")
	return c
}

// runUI serves pages to whom it tells the token.
func (a *app) runUI(cmd *cobra.Command, s *serving) error {
	g := server.Grant{Name: "turnstone ui", Scopes: []server.Scope{server.Read, server.Write, server.Maintain}, Namespaces: []string{"*"}}
	if a.onlyRead {
		g.Scopes, s.readOnly = g.Scopes[:1], true
	}
	token, line, err := server.NewToken(g)
	if err != nil {
		return err
	}
	if s.own, err = server.ReadTokens(strings.NewReader(line)); err != nil {
		return err
	}
	given := s.listen != ""
	if !given {
		s.listen = uiAddress
	}
	address, err := a.check(s)
	if err != nil {
		return err
	}
	var d net.ListenConfig
	l, err := d.Listen(cmd.Context(), "tcp", address)
	if !given && errors.Is(err, syscall.EADDRINUSE) {
		l, err = d.Listen(cmd.Context(), "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return err
	}
	defer l.Close()
	p := printer{w: cmd.OutOrStdout()}
	p.printf("the token is %s\nopen http://%s/ in a browser, and give it the token\n", token, l.Addr())
	if p.err != nil {
		return p.err
	}
	return a.runServe(cmd.Context(), p.w, s, l)
}

// pages returns the pages of a server, which reach it by dial. They search the default namespace, which is st.
func (a *app) pages(s *serving, st *turnstone.Store, o *server.Options, address string, dial func(context.Context) (net.Conn, error)) *ui.UI {
	host, _, _ := net.SplitHostPort(address)
	options := ui.Options{
		Open: func(ctx context.Context, token, namespace string) (ui.Store, error) {
			c, err := client.Open(ctx, "", &client.Options{Token: token, Namespace: namespace, MustExist: true, Dial: dial, Memory: o.Memory})
			if err != nil {
				return nil, fmt.Errorf("%w: namespace %q", err, namespace)
			}
			return c, nil
		},
		Tokens: o.Tokens, ReadOnly: s.readOnly, Secure: s.cert != "", Loopback: s.cert == "" && host != "",
	}
	if a.indexPath() != "" && a.keyFile == "" && !a.onlyRead {
		options.Search = func(ctx context.Context, text string) ([]search.Result, error) { return a.find(ctx, st, text) }
		options.Forget = func(ctx context.Context) error { return a.forgetIn(ctx, st) }
	}
	options.Usage = func(ctx context.Context) ([]ui.UsageRow, error) { return used(ctx, st) }
	return ui.New(options)
}

// used sums up what all sessions have used, by day and model, at the prices that are built in.
func used(ctx context.Context, st *turnstone.Store) ([]ui.UsageRow, error) {
	table, err := loadPrices(os.Getenv(pricesVariable))
	if err != nil {
		return nil, err
	}
	l := ledger{by: []string{"day", "model"}, prices: table, sums: map[account]*tally{}, unpriced: map[string]bool{}}
	if err := l.read(ctx, st, nil); err != nil {
		return nil, err
	}
	var rows []ui.UsageRow
	for k, u := range l.sums {
		rows = append(rows, ui.UsageRow{Day: k.day, Model: k.model, Input: u.Input, Output: u.Output, Cost: u.Cost})
	}
	return rows, nil
}

// indexTime is how long a search waits for the index to be made. It goes on from there with the next search.
const indexTime = 10 * time.Second

// find searches for the pages.
func (a *app) find(ctx context.Context, st *turnstone.Store, text string) (found []search.Result, err error) {
	q, err := search.Parse(text, time.Now())
	if err != nil {
		return nil, err
	}
	x, err := a.index("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	limited, cancel := context.WithTimeout(ctx, indexTime)
	defer cancel()
	if _, err := x.Sync(limited, st); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: the index is being made: search again", wire.ErrBusy)
		}
		return nil, err
	}
	return x.Find(ctx, st, q, search.FindOptions{Limit: 100, Branches: true})
}
