//go:build linux || darwin

package open_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var damageRounds = flag.Int("damages", 0, "how many rounds of damages TestDamageByClass… makes: about 75 cases each")

// A patient is a store at rest, as copies of its directory have it.
type patient struct {
	scheme, state string
	dir           string
	acked         []uint64 // what was acknowledged
	older         string   // the directory of the same store, before
	foreign       string   // that of another store, with files of the same names
}

// patients makes stores of a driver: closed, killed, and closed after a vacuum.
func patients(t *testing.T, scheme string) (out []patient) {
	for _, state := range []string{"closed", "killed", "vacuumed"} {
		p := patient{scheme: scheme, state: state, older: t.TempDir() + "/store", foreign: t.TempDir() + "/store"}
		p.dir, p.acked = grown(t, scheme, state, 0, p.older)
		other, _ := grown(t, scheme, state, 1<<20, "")
		copyDirectory(t, other, p.foreign)
		out = append(out, p)
	}
	return out
}

// grown makes a store with numbers from first on, and returns a copy of its directory at rest. Halfway
// it copies the directory to older, if that is not empty.
func grown(t *testing.T, scheme, state string, first uint64, older string) (dir string, acked []uint64) {
	path := t.TempDir() + "/store"
	dir = t.TempDir() + "/store"
	opened := func() engine.Engine {
		e, err := open.Open(t.Context(), scheme+path, &open.Options{Exclusive: true})
		must(t, err)
		return e
	}
	e := opened()
	for n := range uint64(240) {
		if n == 120 {
			if state != "killed" {
				must(t, e.Close())
			}
			if older != "" {
				copyDirectory(t, path, older)
			}
			if state != "killed" {
				e = opened()
			}
		}
		b := what(first + n)
		if n%8 == 0 { // so that tables are more than a block
			b.Set(fmt.Appendf(nil, "large %d", first+n), bytes.Repeat([]byte{byte(n)}, 3000))
		}
		must(t, e.Apply(context.Background(), b))
		acked = append(acked, first+n)
	}
	if state == "vacuumed" {
		var b engine.Batch
		for _, n := range acked[:20] {
			b.Delete(binary.BigEndian.AppendUint64(nil, n))
		}
		must(t, e.Apply(context.Background(), &b))
		acked = acked[20:]
		must(t, e.Vacuum(context.Background()))
	}
	if state == "killed" {
		copyDirectory(t, path, dir)
		must(t, e.Close())
		return dir, acked
	}
	must(t, e.Close())
	copyDirectory(t, path, dir)
	return dir, acked
}

// copyDirectory copies a directory. Where a file is sparse, its copy is sparse, too.
func copyDirectory(t *testing.T, from, to string) {
	t.Helper()
	must(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return copyFile(path, target)
	}))
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	block := make([]byte, 64<<10)
	at := int64(0)
	for {
		n, err := io.ReadFull(in, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := out.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err != nil {
			break
		}
	}
	return out.Truncate(at)
}

var zeros = make([]byte, 64<<10)

// files returns the names of the files of a directory that are not empty, but for locks.
func files(dir string) (out []string) {
	entries, _ := os.ReadDir(dir)
	for _, d := range entries {
		i, err := d.Info()
		if err == nil && i.Mode().IsRegular() && i.Size() > 0 && !strings.HasSuffix(strings.ToLower(d.Name()), "lock") {
			out = append(out, d.Name())
		}
	}
	return out
}

// A damage is of a class. do changes the directory, and reports false if there is nothing for it.
type damage struct {
	class string
	do    func(p *patient, dir string, rnd *rand.Rand) (what string, ok bool)
}

func pick[T any](rnd *rand.Rand, all []T) (v T) {
	if len(all) > 0 {
		v = all[rnd.IntN(len(all))]
	}
	return v
}

// replace puts the file of that name of another directory in the place of one.
func replace(from, dir string, rnd *rand.Rand) (string, bool) {
	names := slices.DeleteFunc(files(dir), func(n string) bool { return !slices.Contains(files(from), n) })
	name := pick(rnd, names)
	return name, name != "" && copyFile(filepath.Join(from, name), filepath.Join(dir, name)) == nil
}

// edit changes the content of a file.
func edit(dir string, rnd *rand.Rand, f func([]byte) []byte) (string, bool) {
	name := pick(rnd, files(dir))
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || len(b) == 0 {
		return name, false
	}
	return name, os.WriteFile(filepath.Join(dir, name), f(b), 0o600) == nil
}

const block = 4 << 10

var damages = []damage{
	{"stale copy", func(p *patient, dir string, rnd *rand.Rand) (string, bool) { return replace(p.older, dir, rnd) }},
	{"foreign file", func(p *patient, dir string, rnd *rand.Rand) (string, bool) { return replace(p.foreign, dir, rnd) }},
	{"file gone", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		name := pick(rnd, files(dir))
		return name, os.Remove(filepath.Join(dir, name)) == nil
	}},
	{"exchanged files", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		a := pick(rnd, files(dir))
		same := slices.DeleteFunc(files(dir), func(n string) bool { return n == a || filepath.Ext(n) != filepath.Ext(a) })
		b := pick(rnd, same)
		if b == "" {
			return "", false
		}
		a, b = filepath.Join(dir, a), filepath.Join(dir, b)
		return filepath.Base(a) + " and " + filepath.Base(b), errors.Join(os.Rename(a, a+"~"), os.Rename(b, a), os.Rename(a+"~", b)) == nil
	}},
	{"exchanged blocks", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		changed := false
		name, ok := edit(dir, rnd, func(b []byte) []byte {
			used := len(bytes.TrimRight(b, "\x00"))
			size := min(block, used/2)
			if size == 0 {
				return b
			}
			i, j := rnd.IntN(used/size), rnd.IntN(used/size)
			first, second := bytes.Clone(b[i*size:(i+1)*size]), bytes.Clone(b[j*size:(j+1)*size])
			changed = !bytes.Equal(first, second)
			copy(b[i*size:], second)
			copy(b[j*size:], first)
			return b
		})
		return name, ok && changed
	}},
	{"zeroed", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		return edit(dir, rnd, func(b []byte) []byte {
			used := len(bytes.TrimRight(b, "\x00"))
			size := min(1+rnd.IntN(block), used)
			at := []int{0, max(used-size, 0), rnd.IntN(used - size + 1)}[rnd.IntN(3)]
			clear(b[at : at+size])
			return b
		})
	}},
	{"truncated", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		return edit(dir, rnd, func(b []byte) []byte {
			used := len(bytes.TrimRight(b, "\x00"))
			return b[:[]int{0, max(used-1, 0), max(used-block, 0), rnd.IntN(used + 1)}[rnd.IntN(4)]]
		})
	}},
	{"half a directory", func(_ *patient, dir string, rnd *rand.Rand) (string, bool) {
		gone := slices.DeleteFunc(files(dir), func(string) bool { return rnd.IntN(2) == 0 })
		for _, name := range gone {
			_ = os.Remove(filepath.Join(dir, name))
		}
		return strings.Join(gone, ", "), len(gone) > 0
	}},
}

// judge opens a damaged store in another process, because damage may end that, and reads all of it. It returns
// "harmless", "reported", "older" if the store is what it was before, "ends" if the process ended, or "silent: " and
// what is wrong.
func (p *patient) judge(t *testing.T, dir string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestJudge$", "-test.v")
	c.Env = append(os.Environ(), fmt.Sprintf("TURNSTONE_JUDGE=%s%s", p.scheme, dir), fmt.Sprintf("TURNSTONE_ACKED=%d-%d", p.acked[0], p.acked[len(p.acked)-1]))
	out, err := c.CombinedOutput()
	_, verdict, told := strings.Cut(string(out), "verdict: ")
	switch verdict, _, _ = strings.Cut(verdict, "\n"); {
	case told:
		return verdict
	case err != nil && ctx.Err() == nil:
		return "ends"
	}
	return fmt.Sprintf("silent: no verdict, %v: %.2000s", ctx.Err(), out)
}

// TestJudge is what judge runs.
func TestJudge(t *testing.T) {
	url := os.Getenv("TURNSTONE_JUDGE")
	if url == "" {
		t.Skip("it is run by other tests")
	}
	var first, last uint64
	if _, err := fmt.Sscanf(os.Getenv("TURNSTONE_ACKED"), "%d-%d", &first, &last); err != nil {
		t.Fatal(err)
	}
	fmt.Println("verdict:", judged(t, url, first, last))
}

func judged(t *testing.T, url string, first, last uint64) string {
	e, err := open.Open(t.Context(), url, &open.Options{Exclusive: true})
	if err != nil {
		return "reported"
	}
	defer e.Close()
	var acked []uint64
	for n := first; n <= last; n++ {
		acked = append(acked, n)
	}
	err = has(e, acked, false)
	if err == nil {
		return "harmless"
	}
	for _, of := range []error{engine.ErrCorrupt, engine.ErrClosed, engine.ErrUnavailable} {
		if errors.Is(err, of) {
			return "reported"
		}
	}
	if has(e, acked[:120-int(first)], false) == nil {
		if v, verr := e.Get(t.Context(), binary.BigEndian.AppendUint64(nil, 120)); verr == nil && v[0] == nil {
			return "older"
		}
	}
	return fmt.Sprintf("silent: %v", err)
}

// untold reports whether damage is of a kind that no witness of Badger tells: see docs/engines.md. That is of a
// process that was killed, within a table, and where the witness itself is gone or another one.
func (p *patient) untold(what string) bool {
	return p.scheme == "badger:" && (p.state == "killed" || strings.Contains(what, ".sst") || strings.Contains(what, "turnstone.witness"))
}

// Files of a store at rest are damaged by class: it is reported, or it does not matter.
func TestDamageByClassIsReportedOrHarmless(t *testing.T) {
	testkit.OneGoroutine(t)
	rounds := cmp.Or(*damageRounds, testkit.Pick(3, 2, 1))
	for _, name := range open.Schemes() {
		scheme := name + ":"
		t.Run(name, func(t *testing.T) {
			verdicts := map[string]map[string]int{}
			total := 0
			for _, p := range patients(t, scheme) {
				for seed := range rounds {
					for i, d := range damages {
						for _, second := range []*damage{nil, &damages[(i+seed)%len(damages)]} {
							rnd := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
							dir := t.TempDir() + "/store"
							copyDirectory(t, p.dir, dir)
							what, ok := d.do(&p, dir, rnd)
							class := d.class
							if ok && second != nil {
								and, also := second.do(&p, dir, rnd)
								what, class, ok = what+", then "+second.class+" of "+and, "a pair", also
							}
							if !ok {
								continue
							}
							total++
							v := p.judge(t, dir)
							// Several stale files together can be the store as it was before, which nothing tells.
							older := v == "older" && strings.Count(what+d.class, "stale copy") == 2
							if !older && v != "harmless" && v != "reported" {
								hangs, ends := strings.Contains(v, "no verdict"), v == "ends" && p.state != "killed" && !strings.Contains(what, "turnstone.witness")
								if p.untold(what) && !hangs && !ends {
									v = "not told"
								} else {
									t.Errorf("%s, %s: %s (seed %d): %s", p.state, class, what, seed, v)
								}
							}
							if verdicts[class] == nil {
								verdicts[class] = map[string]int{}
							}
							verdicts[class][v]++
							must(t, os.RemoveAll(dir))
						}
					}
				}
			}
			t.Logf("%d cases: %v", total, verdicts)
		})
	}
}
