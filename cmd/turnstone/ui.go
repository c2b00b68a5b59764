package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/cmd/turnstone/ui"
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

// pages returns the pages that show a server's store. They are a client of that server, and dial connects them to it.
func (a *app) pages(s *serving, fs *finders, o *server.Options, address string, dial func(context.Context) (net.Conn, error)) *ui.UI {
	host, _, _ := net.SplitHostPort(address)
	options := ui.Options{
		Open: func(ctx context.Context, token, namespace string) (ui.Store, error) {
			c, err := client.Open(ctx, "", &client.Options{Token: token, Namespace: namespace, MustExist: true, Dial: dial, Memory: o.Memory})
			if err != nil {
				return nil, fmt.Errorf("%w: namespace %q", err, namespace)
			}
			return c, nil
		},
		Tokens: o.Tokens, ReadOnly: s.readOnly, Secure: s.cert != "", Loopback: s.cert == "" && host != "", Usage: fs.usageIn,
	}
	if fs.path != nil {
		options.Search, options.Forget = fs.searchIn, fs.forget
	}
	return ui.New(options)
}
