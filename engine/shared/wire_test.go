package shared

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

func TestVersionsThatDifferRefuseEachOther(t *testing.T) {
	dir := t.TempDir()
	hold(t, dir, func(c net.Conn) {
		hello, _ := endFrame(append(make([]byte, 4), "turnstone-shared 77 and something new"...), maxFrame)
		c.Write(hello)
	})
	if _, err := Open(ctx, dir, Driver{Name: "disk", Open: newDisk().driver}); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "version 77") {
		t.Error(err)
	}
}

func TestErrorsCrossTheSocket(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	for _, want := range wireErrors {
		if want == engine.ErrClosed {
			continue // is never shown: the store is opened again
		}
		d.before = func(int32, string) error { return fmt.Errorf("more: %w", want) }
		err := set(other, "a", "1")
		for _, e := range wireErrors {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%v became %v", want, err)
			}
		}
		if !strings.Contains(err.Error(), "more: ") {
			t.Errorf("%v: the text is lost", err)
		}
	}
	d.before = func(int32, string) error { return nil }
	var b engine.Batch
	b.Guard([]byte("k"), []byte("v"))
	var conflict *engine.ConflictError
	if err := other.Apply(ctx, &b); !errors.As(err, &conflict) || string(conflict.Key) != "k" || !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
}

func TestMalformedMessagesEndTheConnectionAlone(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner := join(t, dir, d.driver)
	for name, message := range map[string][]byte{
		"no such operation": frame('x'),
		"half a request":    frame(opApply, 0, 200),
		"more than it":      frame(opVacuum, 1),
		"too many keys":     frame(opGet, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"an empty frame":    {0, 0, 0, 0},
		"a huge frame":      {0xff, 0xff, 0xff, 0xff},
	} {
		c, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(c, maxFrame); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(message); err != nil {
			t.Fatal(err)
		}
		if reply, err := readFrame(c, maxFrame); err == nil && (reply[0] != statusError || !bytes.Contains(reply, []byte(errProtocol.Error()))) {
			t.Errorf("%s: %q", name, reply)
		}
		c.Close()
	}
	if err := set(owner, "a", "1"); err != nil {
		t.Error(err)
	}
}

func TestAReplyThatIsMalformedIsAnError(t *testing.T) {
	for name, reply := range map[string][]byte{
		"no such status":  frame('x'),
		"too few values":  frame(statusOK, 0),
		"more than asked": frame(statusOK, 1, 0, 9),
		"half an error":   frame(statusError, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			id := prepared(t, dir).ID()
			hold(t, dir, func(c net.Conn) {
				hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1, 2, 3, 4), maxFrame)
				c.Write(hello)
				for {
					if _, err := readFrame(c, maxFrame); err != nil {
						return
					}
					c.Write(reply)
				}
			})
			e, err := Open(ctx, dir, Driver{Name: "disk", Open: newDisk().driver})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if e.Limits() != (engine.Limits{KeyBytes: 1, ValueBytes: 2, BatchBytes: 3, BatchOps: 4}) {
				t.Error(e.Limits())
			}
			if v, err := e.Get(ctx, []byte("a")); !errors.Is(err, errProtocol) {
				t.Errorf("%q, %v", v, err)
			}
			if reply[4] != statusOK { // which is right for a batch
				if err := e.Apply(ctx, &engine.Batch{}); !errors.Is(err, errProtocol) || !errors.Is(err, engine.ErrUnknown) {
					t.Errorf("a batch: %v", err)
				}
			}
		})
	}
}

// FuzzRequests checks that the owner answers any request, and that what it understands reads back the same.
func FuzzRequests(f *testing.F) {
	var b engine.Batch
	b.Guard([]byte("g"), nil)
	b.Set([]byte("s"), []byte("v"))
	b.Delete([]byte("d"))
	f.Add(appendBatch([]byte{opApply}, &b))
	f.Add(appendList([]byte{opGet}, [][]byte{[]byte("a"), nil}))
	f.Add(appendRange([]byte{opScan}, engine.Range{Start: []byte("a"), End: []byte("b"), Limit: 3}))
	f.Fuzz(func(t *testing.T, request []byte) {
		if len(request) == 0 || request[0] == opVacuum {
			return
		}
		d := newDisk()
		o := &owner{of: &Engine{}, driver: &driver{disk: d}}
		reply := o.answer(ctx, request)
		if n := binary.LittleEndian.Uint32(reply); int(n) != len(reply)-4 || reply[4] != statusOK && reply[4] != statusError {
			t.Errorf("%q", reply)
		}
		if of := (&decoder{b: request[1:]}); request[0] == opApply {
			if b := of.batch(); of.end() == nil {
				again := &decoder{b: appendBatch(nil, b)}
				if c := again.batch(); again.end() != nil || fmt.Sprint(b) != fmt.Sprint(c) {
					t.Errorf("%v is not %v", c, b)
				}
			}
		}
	})
}

func TestAMessageTakesNoMoreMemoryThanItHas(t *testing.T) {
	request := append(newFrame(opApply), 0, 0xff, 0xff, 0xff, 0x7f) // a quarter of a billion guards
	request = append(request, make([]byte, 1<<20)...)
	d := &decoder{b: request[5:]}
	if n := testing.AllocsPerRun(1, func() { d.b, d.bad = request[5:], false; d.batch() }); n > 100 || d.end() == nil {
		t.Errorf("%v allocations, %v", n, d.end())
	}
	in, out := net.Pipe()
	defer out.Close()
	go func() {
		out.Write([]byte{0xff, 0xff, 0xff, 0x3f})
		out.Close()
	}()
	if b, err := readFrame(in, maxFrame); err == nil || cap(b) > 2<<20 {
		t.Errorf("%d bytes, %v", cap(b), err)
	}
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	dir, d := private(t), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	first := other.side
	var b engine.Batch
	for i := range 70 {
		b.Guard(fmt.Append(nil, i), make([]byte, 1<<20))
	}
	if err := other.Apply(ctx, &b); !errors.Is(err, engine.ErrTooLarge) || other.side != first {
		t.Error(err)
	}
}

func TestNamesOfDriversAreOneWord(t *testing.T) {
	for _, name := range []string{"", "my engine", "a\nb", "é"} {
		if _, err := Open(ctx, private(t), Driver{Name: name, Open: newDisk().driver}); err == nil || !strings.Contains(err.Error(), "no name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
