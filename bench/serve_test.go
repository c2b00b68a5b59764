package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/server"
)

// BenchmarkServe commits turns of four nodes, loads 20 and 1,000 nodes, and sends and reads an attachment, on Badger
// in this process and through a server of this process on a Unix socket.
func BenchmarkServe(b *testing.B) {
	for _, durability := range []pebble.Durability{pebble.Power, pebble.Process} {
		for _, where := range []string{"here", "http"} {
			name := map[pebble.Durability]string{pebble.Power: "power", pebble.Process: "process"}[durability]
			b.Run(name+"/"+where, func(b *testing.B) {
				e, err := pebble.Open(b.TempDir()+"/store", &pebble.Options{Durability: durability})
				if err != nil {
					b.Fatal(err)
				}
				st := storeOn(b, e)
				f := st.Factory()
				if where == "http" {
					f = overHTTP(b, st)
				}
				benchFactory(b, f)
			})
		}
	}
}

// overHTTP serves a store, and returns a client of it.
func overHTTP(b *testing.B, st *turnstone.Store) turnstone.Factory {
	s, err := server.New(server.Options{Open: func(context.Context, string, bool) (*turnstone.Store, error) { return st, nil }})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("unix", b.TempDir()+"/s")
	if err != nil {
		b.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- s.Serve(serving, l) }()
	c, err := client.Open(ctx, "unix:"+l.Addr().String(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	return c
}

func benchFactory(b *testing.B, f turnstone.Factory) {
	create := func(id string) turnstone.Persistence {
		s, _, err := f.Create(ctx, turnstone.Request{ID: id})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	b.Run("commit", func(b *testing.B) {
		s := create(fmt.Sprint("commit ", b.N))
		for i := 0; b.Loop(); i++ {
			c := turn(1, i)
			c.Expected = turnstone.AnyRevision
			if _, err := s.Commit(ctx, c); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := create("load")
	for i := range 250 {
		c := turn(1, i)
		c.Expected = turnstone.AnyRevision
		if _, err := s.Commit(ctx, c); err != nil {
			b.Fatal(err)
		}
	}
	for _, n := range []int{20, 1000} {
		b.Run(fmt.Sprint("load", n), func(b *testing.B) {
			for b.Loop() {
				if st, err := s.Load(ctx, turnstone.Scope{Last: n}); err != nil || len(st.Nodes) != n {
					b.Fatal(len(st.Nodes), err)
				}
			}
		})
	}
	content := make([]byte, 8<<20)
	for i := range content {
		content[i] = byte(i * 2654435761 >> 13)
	}
	b.Run("attach", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for i := 0; b.Loop(); i++ {
			content[i%len(content)]++
			if _, err := s.PutAttachment(ctx, bytes.NewReader(content), int64(len(content)), "", ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	a, err := s.PutAttachment(ctx, bytes.NewReader(content), int64(len(content)), "", "")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if _, err := s.ReadAttachment(ctx, io.Discard, a.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
}
