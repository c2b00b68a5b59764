package postgres_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	neturl "net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// certificate makes one for host that signs itself.
func certificate(t *testing.T, host string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err = x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err == nil {
		key, err = x509.MarshalPKCS8PrivateKey(private)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

// The URL says what TLS is wanted, and gets it or no connection.
func TestTLS(t *testing.T) {
	testkit.Slow(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port // free again in a moment
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	srv := pgtest.Private(t, "listen_addresses=127.0.0.1", fmt.Sprint("port=", port))
	cert, key := certificate(t, "localhost")
	c, err := pgx.Connect(ctx, srv.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for setting, content := range map[string][]byte{"ssl_cert_file": cert, "ssl_key_file": key} {
		path, err := srv.File(setting, content)
		if err == nil {
			_, err = c.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", setting, path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"} {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Until(t, "the server speaks TLS", func() (on bool) {
		if err := c.QueryRow(ctx, "SELECT setting = 'on' FROM pg_settings WHERE name = 'ssl'").Scan(&on); err != nil {
			t.Fatal(err)
		}
		return on
	})
	other, _ := certificate(t, "localhost")
	dir := t.TempDir()
	for name, pem := range map[string][]byte{"right.pem": cert, "other.pem": other} {
		if err := os.WriteFile(filepath.Join(dir, name), pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	for name, test := range map[string]struct {
		host, params string
		fails        any // a pointer to the type of the error
		tls          bool
	}{
		"verified":          {"localhost", "sslmode=verify-full&sslrootcert=" + dir + "/right.pem", nil, true},
		"not verified":      {"127.0.0.1", "sslmode=require", nil, true},
		"without":           {"127.0.0.1", "sslmode=disable", nil, false},
		"another authority": {"localhost", "sslmode=verify-full&sslrootcert=" + dir + "/other.pem", &authority, false},
		"another name":      {"127.0.0.1", "sslmode=verify-full&sslrootcert=" + dir + "/right.pem", &hostname, false},
	} {
		url := fmt.Sprintf("postgres://postgres@%s:%d/postgres?%s&application_name=%s", test.host, port, test.params, t.Name())
		e, err := postgres.Open(ctx, url, nil)
		if err != nil {
			if test.fails == nil || !errors.As(err, test.fails) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if test.fails != nil {
			t.Errorf("%s: connected", name)
		}
		var tls bool
		err = c.QueryRow(ctx, "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1", t.Name()).Scan(&tls)
		if err != nil || tls != test.tls {
			t.Errorf("%s: TLS is %v, %v", name, tls, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		testkit.Until(t, "the connections have ended", func() (ended bool) {
			if err := c.QueryRow(ctx, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = $1", t.Name()).Scan(&ended); err != nil {
				t.Fatal(err)
			}
			return ended
		})
	}
}

// What can't be reached now is told from what won't be there later either.
func TestOpenFails(t *testing.T) {
	testkit.Slow(t)
	url := pgtest.URL(t)
	nowhere, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	nowhere.Path = "/nodb"
	gone, stop := context.WithCancel(ctx)
	stop()
	for name, c := range map[string]struct {
		ctx         context.Context
		url         string
		unavailable bool
	}{
		"nobody listens": {ctx, "postgres:///postgres?host=" + t.TempDir(), true},
		"no database":    {ctx, nowhere.String(), false},
		"no URL":         {ctx, "postgres://%zz", false},
		"a bad setting":  {ctx, url + "&lock_timeout=soon", false},
		"given up":       {gone, url, false},
	} {
		e, err := postgres.Open(c.ctx, c.url, nil)
		if err == nil {
			e.Close()
			t.Errorf("%s: no error", name)
		}
		if errors.Is(err, engine.ErrUnavailable) != c.unavailable || errors.Is(err, context.Canceled) != (c.ctx == gone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPoolSize(t *testing.T) {
	for params, want := range map[string]int32{"": 16, "&pool_max_conns=3": 3} {
		e, err := postgres.Open(ctx, pgtest.URL(t)+params, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.MaxConns(); got != want {
			t.Errorf("%q: %d connections, want %d", params, got, want)
		}
		e.Close()
	}
}

// The names of settings are the same in any letter case, and the URL's count.
func TestSettings(t *testing.T) {
	for range 5 {
		e, err := postgres.Open(ctx, pgtest.URL(t)+"&Lock_Timeout=2345", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Setting(t, "lock_timeout"); got != "2345ms" {
			t.Errorf("lock_timeout is %s", got)
		}
		if got := e.Setting(t, "jit"); got != "off" {
			t.Errorf("jit is %s", got)
		}
		e.Close()
	}
	e, err := postgres.Open(ctx, pgtest.URL(t), &postgres.Options{Timeout: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got := e.Setting(t, "lock_timeout"); got != "1d" {
		t.Errorf("lock_timeout is %s", got)
	}
}

// Neither waits for the other's connections.
func TestMaintenanceHasConnectionsOfItsOwn(t *testing.T) {
	e, err := postgres.Open(ctx, pgtest.URL(t)+"&pool_max_conns=2", &postgres.Options{Schema: pgtest.Schema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Apply(ctx, set("1")); err != nil {
		t.Fatal(err)
	}
	slow := engine.ForMaintenance(ctx)
	for _, maintenance := range []bool{false, true} {
		release := e.Hold(t, maintenance, 2)
		free, taken := slow, ctx
		if maintenance {
			free, taken = ctx, slow
		}
		if v, err := e.Get(free, []byte("k")); err != nil || string(v[0]) != "1" {
			t.Errorf("%s, %v", v, err)
		}
		if err := e.Apply(free, set("1")); err != nil {
			t.Error(err)
		}
		limited, cancel := context.WithTimeout(taken, 50*time.Millisecond)
		if _, err := e.Get(limited, []byte("k")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a connection: %v", err)
		}
		cancel()
		if maintenance {
			limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			if err := e.Vacuum(limited); err == nil {
				t.Error("a vacuum takes a connection of others")
			}
			cancel()
		}
		release()
	}
	if err := e.Vacuum(ctx); err != nil {
		t.Error(err)
	}
}
