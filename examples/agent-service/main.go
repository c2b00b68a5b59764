// Command agent-service is a chat service on Turnstone: an HTTP server with a
// product database of its own beside the session store, a scripted agent with
// tools in place of a model, streamed replies, attachments and metrics.
//
// What to look at:
//
//   - The product database (chats and their titles) and the store are two
//     systems. A chat's id is its session's id; the chat is made first, its
//     session when it is first used. A crash between the two leaves a chat
//     without messages, which is what it is.
//   - A turn is claimed before it is run: the user's message is committed on the
//     revision that the client saw. Of several posts at once one wins; the others
//     get 409 with the head as it is now, before a word is generated.
//   - The reply is committed as one turn upon the claim. A server that is killed
//     in between finds the unanswered message when it starts, and answers it.
//
// Try it:
//
//	go run . &                                                             # and open http://127.0.0.1:8080 in two tabs
//	curl -d '{"title":"first"}' localhost:8080/chats                       # {"id":"CHAT",…}
//	curl -N -d '{"text":"add 2 3"}' localhost:8080/chats/CHAT/messages     # lines: claimed, delta …, done
//	curl 'localhost:8080/chats/CHAT?after=2'                               # what came after revision 2
//	curl --data-binary @notes.txt 'localhost:8080/chats/CHAT/attachments?name=notes.txt'   # goes into "attachments" of a message
//	curl localhost:8080/metrics
//
// Two servers on one database, as on two hosts (they share the folder of the
// product database here):
//
//	go run . -store postgres://user@host/db &
//	go run . -store postgres://user@host/db -addr 127.0.0.1:8081 &
//
// A message can name the revision that its author saw ("revision"); the header
// Idempotency-Key makes a post safe to send again. GET /chats lists the chats, GET
// /chats/CHAT/attachments/ID reads what a message refers to. Texts that begin with
// add or reverse call a tool.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/turnstoneotel"
	"github.com/turnstonedb/turnstone/engine/open"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr := flag.String("addr", "127.0.0.1:8080", "address to serve")
	data := flag.String("data", "./agent-service-data", "folder of the product database, and of the store unless -store is given")
	store := flag.String("store", "", "URL of the store: "+open.Forms)
	pace := flag.Duration("pace", 20*time.Millisecond, "how long the scripted agent takes for a word")
	flag.Parse()
	if err := run(ctx, *addr, *data, *store, *pace); err != nil {
		fmt.Fprintln(os.Stderr, "agent-service:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, data, url string, pace time.Duration) (err error) {
	closing := func(c interface{ Close() error }) { err = errors.Join(err, c.Close()) }
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	db, err := openProducts(ctx, filepath.Join(data, "product.db"))
	if err != nil {
		return err
	}
	defer closing(db)
	if url == "" {
		url = filepath.Join(data, "store")
	}
	eng, err := open.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer closing(eng)

	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(exporter))
	defer func() { err = errors.Join(err, meters.Shutdown(context.WithoutCancel(ctx))) }()
	observer, err := turnstoneotel.New(&turnstoneotel.Options{MeterProvider: meters})
	if err != nil {
		return err
	}
	store, err := turnstone.Open(ctx, eng, &turnstone.Options{Observer: observer, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer closing(store)
	if _, err := store.Maintain(turnstone.MaintainOptions{VacuumEvery: 24 * time.Hour}); err != nil {
		return err
	}

	s := &service{store: store, products: db, pace: pace}
	defer s.turns.Wait()
	if err := s.resume(ctx); err != nil {
		return err
	}
	mux := s.routes()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving on http://%s\n", listener.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		// Requests in flight get their replies to the end; those that take too
		// long are cut off before the store is closed under them.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := server.Shutdown(limit)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		stopped <- err
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
