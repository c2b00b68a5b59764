package bench

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/server"
)

var attacks = flag.Int("attacks", 2000, "requests of BenchmarkHostile that are meant to harm")

// BenchmarkHostile has four tenants commit through a server of its own process, first alone and then beside a token that
// sends requests which are meant to harm: long lists, bodies that are announced and do not come, what is no JSON, uploads
// and watches that nobody ends, connections without requests. It reports the 99th percentile of the others' commits in
// both, how many of these failed, and how much memory the server took at most.
func BenchmarkHostile(b *testing.B) {
	dir := b.TempDir()
	command := filepath.Join(dir, "turnstone")
	if out, err := exec.Command("go", "build", "-o", command, "../cmd/turnstone").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var file strings.Builder
	token := func(namespace string) string {
		t, line, err := server.NewToken(server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{namespace}})
		if err != nil {
			b.Fatal(err)
		}
		fmt.Fprintln(&file, line)
		return t
	}
	var tenants [4]string
	for i := range tenants {
		tenants[i] = token(fmt.Sprint("tenant", i))
	}
	hostile := token("hostile")
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte(file.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	s := exec.Command(command, "serve", "--store", filepath.Join(dir, "s"), "--listen", "127.0.0.1:0", "--tokens", tokens)
	out, err := s.StdoutPipe()
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	_, url, _ := strings.Cut(strings.TrimSpace(line), " on ")

	// commits has the tenants commit until done is closed, and returns how long each took.
	commits := func(done chan struct{}) (took []time.Duration, failed int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, t := range tenants {
			wg.Go(func() {
				c, err := client.Open(ctx, url, &client.Options{Token: t, Namespace: fmt.Sprint("tenant", i)})
				if err != nil {
					b.Error(err)
					return
				}
				defer c.Close()
				p, _, err := c.Create(ctx, turnstone.Request{ID: "s"})
				for err == nil {
					select {
					case <-done:
						return
					case <-time.After(5 * time.Millisecond): // A turn now and then.
					}
					begun := time.Now()
					_, cerr := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}})
					mu.Lock()
					if took = append(took, time.Since(begun)); cerr != nil {
						failed++
					}
					mu.Unlock()
				}
				b.Error(err)
			})
		}
		wg.Wait()
		return took, failed
	}
	p99 := func(took []time.Duration) float64 {
		slices.Sort(took)
		return float64(took[len(took)*99/100].Microseconds()) / 1000
	}
	if testing.Short() {
		*attacks = min(*attacks, 50)
	}
	for b.Loop() {
		done := make(chan struct{})
		time.AfterFunc(5*time.Second, func() { close(done) })
		alone, _ := commits(done)
		done = make(chan struct{})
		sent := make(chan int64)
		go func() {
			defer close(done)
			// In a process of its own: what is measured is not how busy that is.
			a := exec.Command(os.Args[0], "-test.run", "^TestAttack$")
			a.Env = append(os.Environ(), fmt.Sprintf("TURNSTONE_ATTACK=%s %s %d", url, hostile, *attacks))
			if out, err := a.CombinedOutput(); err != nil {
				b.Errorf("%v: %s", err, out)
			}
			sent <- int64(*attacks)
		}()
		var beside []time.Duration
		var failed int
		both := make(chan struct{})
		go func() {
			defer close(both)
			beside, failed = commits(done)
		}()
		n := <-sent
		<-both
		b.ReportMetric(p99(alone), "alone-p99-ms")
		b.ReportMetric(p99(beside), "beside-p99-ms")
		b.ReportMetric(float64(failed), "failed")
		b.ReportMetric(float64(n), "hostile-requests")
	}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Pid)); err == nil {
		for _, l := range strings.Split(string(status), "\n") {
			if kb := 0.0; strings.HasPrefix(l, "VmHWM:") {
				_, _ = fmt.Sscanf(strings.TrimPrefix(l, "VmHWM:"), "%f", &kb)
				b.ReportMetric(kb/1024, "server-MiB")
			}
		}
	}
}

// TestAttack is the process that BenchmarkHostile starts.
func TestAttack(t *testing.T) {
	var url, token string
	var n int64
	if _, err := fmt.Sscan(os.Getenv("TURNSTONE_ATTACK"), &url, &token, &n); err != nil {
		t.Skip("it is no test")
	}
	if sent := attack(url, token, n); sent != n {
		t.Errorf("%d requests were sent", sent)
	}
}

// attack sends n requests that are meant to harm, and returns how many it has sent.
func attack(url, token string, n int64) int64 {
	var left, sent atomic.Int64
	left.Store(n)
	address := strings.TrimPrefix(url, "http://")
	lists := []byte(`{"session":"x","keys":[""` + strings.Repeat(`,""`, 900_000) + `]}`)
	deep := []byte(strings.Repeat(`{"a":[`, 100_000))
	var wg sync.WaitGroup
	for range 8 * runtime.NumCPU() {
		wg.Go(func() {
			h := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: 5 * time.Second}
			ask := func(method, path string, body []byte) {
				c, cancel := context.WithCancel(ctx)
				defer cancel()
				r, err := http.NewRequestWithContext(c, method, url+path, bytes.NewReader(body))
				if err != nil {
					return
				}
				r.Header.Set("Authorization", "Bearer "+token)
				r.Header.Set("Turnstone-Namespace", "hostile")
				if strings.Contains(path, "watch") {
					time.AfterFunc(time.Second, cancel)
				}
				if a, err := h.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<16))
					_ = a.Body.Close()
				}
			}
			for left.Add(-1) >= 0 {
				sent.Add(1)
				switch k := rand.IntN(1000); {
				case k < 2:
					ask("POST", "/v1/nodes-by-key", lists)
				case k < 4:
					ask("POST", "/v1/commit", deep)
				case k < 10: // announced, and never sent
					if c, err := net.Dial("tcp", address); err == nil {
						fmt.Fprintf(c, "POST /v1/list HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nTurnstone-Namespace: hostile\r\nContent-Length: 134217728\r\n\r\n{", token)
						time.AfterFunc(time.Second, func() { _ = c.Close() })
					}
				case k < 14:
					if c, err := net.Dial("tcp", address); err == nil { // without a request
						time.AfterFunc(time.Second, func() { _ = c.Close() })
					}
				case k < 16:
					ask("GET", "/v1/watch?session=x", nil)
				case k < 100:
					ask("PUT", fmt.Sprint("/v1/attachment?session=x&more=1&upload=", rand.Int()), []byte("x"))
				case k < 400:
					ask("POST", "/v1/create", []byte(`{"id":"x"}`))
				case k < 700:
					ask("POST", "/v1/commit", []byte(`{"session":"x","nodes":[{"kind":"k","payload":1}]}`))
				default:
					ask("POST", "/v1/list", []byte(`{"limit":-1}`))
				}
			}
		})
	}
	wg.Wait()
	return sent.Load()
}
