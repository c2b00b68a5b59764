package badger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// container makes a control group that limits the memory of its processes, pages of
// files included, and returns the file that lists them.
func container(t *testing.T, bytes int) (processes string) {
	t.Helper()
	// Version 2 of control groups is one tree, version 1 has one for memory.
	root, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		root, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir, err := os.MkdirTemp(root, "turnstone-test-")
	if err != nil {
		t.Skip("no control group can be made here:", err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(bytes)), 0); err != nil {
		t.Skip("memory can't be limited here:", err)
	}
	return filepath.Join(dir, "cgroup.procs")
}

// A store can be many times larger than the memory of its container, because the kernel
// can take back the pages of mapped tables.
func TestALargeStoreStaysWithinASmallContainer(t *testing.T) {
	testscale.Slow(t)
	if raceEnabled {
		t.Skip("memory of the race detector is not the store's")
	}
	const limit = 256 << 20
	processes := container(t, limit)
	cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$0" && exec "$1" -test.run='^TestContainerChild$' -test.v`, processes, os.Args[0])
	cmd.Env = append(os.Environ(), "TURNSTONE_CONTAINER="+t.TempDir()+"/store")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, peak, ok := strings.Cut(string(out), "anonymous ")
	if !ok {
		t.Fatalf("%s", out)
	}
	t.Logf("limit %d MiB, anonymous memory at most %s", limit>>20, strings.SplitN(peak, "\n", 2)[0])
}

func TestContainerChild(t *testing.T) {
	dir := os.Getenv("TURNSTONE_CONTAINER")
	if dir == "" {
		t.Skip("run by TestALargeStoreStaysWithinASmallContainer")
	}
	e := open(t, dir, &Options{Durability: Process})
	r := rand.New(rand.NewPCG(3, 4))
	most := 0
	sample := func() {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, anon, _ := strings.Cut(string(status), "RssAnon:")
		kB, _ := strconv.Atoi(strings.Fields(anon)[0])
		most = max(most, kB)
	}
	keys, each := testscale.Pick(1500, 600, 150), 200_000 // a long run writes more than the container has memory
	name := func(i int) []byte { return fmt.Appendf(nil, "%06d", i) }
	content := func(i int) []byte { return bytes.Repeat(name(i), each/6) }
	for i := range keys {
		var b engine.Batch
		b.Set(name(i), content(i))
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			j := r.IntN(i + 1)
			vs, err := e.Get(ctx, name(j))
			if err != nil || !bytes.Equal(vs[0], content(j)) {
				t.Fatal("reading", j, err)
			}
			sample()
		}
	}
	n := 0
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil || !bytes.Equal(p.Value, content(n)) {
			t.Fatal("scanning", n, err)
		}
		n++
	}
	sample()
	if err := errors.Join(e.Vacuum(ctx), e.Close()); err != nil || n != keys {
		t.Fatal(n, err)
	}
	sample()
	fmt.Printf("anonymous %d MiB\n", most>>10)
}
