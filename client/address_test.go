package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// What does not answer is unavailable, and what answers is told from a server of stores.
func TestSV4_AnAddressWithoutAServerIsUnavailable(t *testing.T) {
	_, err := client.Open(ctx, "unix:"+filepath.Join(t.TempDir(), "none"), &client.Options{Patience: time.Millisecond})
	if !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := client.Open(limited, "unix:"+filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	begun := time.Now()
	if _, err := client.Open(ctx, other.URL, nil); err == nil || errors.Is(err, engine.ErrUnavailable) || time.Since(begun) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	for _, bad := range []string{"", "host:80", "ftp://host", "http://", "http://user@host", "https://host?q"} {
		if _, err := client.Open(ctx, bad, nil); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

// After Close every call fails at once.
func TestSV4_ACallEndsWithItsClient(t *testing.T) {
	cl, _ := behind(t, memory.New(), turnstone.Options{}, func() (int64, int64) { return -1, -1 })
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range s.Watch(ctx, 0) {
			ended <- err
		}
	}()
	time.Sleep(20 * time.Millisecond)
	cl.Close()
	if err := <-ended; !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a watch ends with %v", err)
	}
	if _, err := s.Info(ctx); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// A server that accepts and is silent is unavailable as well.
func TestSV4_AServerThatIsSilentIsUnavailable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := client.Open(limited, "http://"+l.Addr().String(), &client.Options{Patience: time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
