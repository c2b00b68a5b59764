package tests

import (
	"bytes"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A move that can't be made says why, and changes nothing. One that was begun can be given up.
func TestMV5_AMoveIsRefusedOrGivenUp(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New(), "c": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	before := pairs(t, d["a"])
	move := func(to engine.Engine, o turnstone.MoveOptions) error {
		_, err := turnstone.Move(ctx, d["a"], to, o)
		return err
	}
	other, err := turnstone.Open(ctx, d["c"], nil)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	copied := memory.New()
	if _, err := turnstone.Copy(ctx, d["a"], copied, turnstone.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	var limit *turnstone.LimitError
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"another store":    {move(d["c"], turnstone.MoveOptions{To: "c"}), turnstone.ErrOtherStore},
		"a copy":           {move(copied, turnstone.MoveOptions{To: "b"}), turnstone.ErrConflict},
		"itself":           {move(d["a"], turnstone.MoveOptions{To: "a"}), turnstone.ErrConflict},
		"no name":          {move(d["b"], turnstone.MoveOptions{}), turnstone.ErrInvalid},
		"no target":        {move(nil, turnstone.MoveOptions{To: "b"}), turnstone.ErrInvalid},
		"another name":     {move(d["b"], turnstone.MoveOptions{To: "b", Namespace: "no such"}), turnstone.ErrStoreNotFound},
		"nothing to stop":  {turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}), nil},
		"a name too large": {move(d["b"], turnstone.MoveOptions{To: string(make([]byte, turnstone.MaxDatabase+1))}), turnstone.ErrLimit},
	} {
		if !errors.Is(c.err, c.want) || c.want == turnstone.ErrLimit && !errors.As(c.err, &limit) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if after := pairs(t, d["a"]); !samePairs(before, after) || len(pairs(t, d["b"])) > 0 {
		t.Error("a refused move has changed something")
	}
	cut := &enginetest.Faulty{Engine: d["b"], Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Move(ctx, d["a"], cut, turnstone.MoveOptions{To: "b"}); err == nil {
		t.Fatal("it was not cut off")
	}
	commitBeside(t, s)
	if w, err := turnstone.Where(ctx, d["a"], ""); err != nil || w != (turnstone.Whereabouts{Here: true, To: "b"}) {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := turnstone.Open(ctx, d["b"], d.options()); !errors.Is(err, turnstone.ErrUnfinishedCopy) {
		t.Error(err)
	}
	if err := move(memory.New(), turnstone.MoveOptions{To: "c"}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("to another database meanwhile: %v", err)
	}
	if _, err := turnstone.Copy(ctx, d["a"], memory.New(), turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy meanwhile: %v", err)
	}
	if _, err := turnstone.Copy(ctx, copied, d["b"], turnstone.CopyOptions{Overwrite: true}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy of a copy to the other database: %v", err)
	}
	cutCopy := &enginetest.Faulty{Engine: memory.New(), Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Copy(ctx, copied, cutCopy, turnstone.CopyOptions{}); err == nil {
		t.Error("the copy was not cut off")
	}
	o := turnstone.MoveOptions{To: "b"}
	if err := turnstone.CancelMove(ctx, d["a"], cutCopy.Engine, o); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("the copy was taken for a move: %v", err)
	}
	if err := move(cutCopy.Engine, o); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a move to where a copy was begun: %v", err)
	}
	verify(t, st)
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(pairs(t, d["b"])); n > 0 {
		t.Errorf("%d records are left", n)
	}
	for _, p := range pairs(t, d["a"]) {
		if p.Key[4] == keys.Touched {
			t.Error("a note is left")
		}
		if bytes.Equal(p.Key, keys.StoreKey("")) && bytes.Equal(p.Value, before[0].Value) {
			t.Error("the store record has come back: a batch that comes late would be applied")
		}
	}
	commitBeside(t, s)
	d.move(t, "a", "b")
	var where *engine.MovedError
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); !errors.As(err, &where) || where.To != "b" {
		t.Errorf("after the move: %v", err)
	}
	if err := move(memory.New(), turnstone.MoveOptions{To: "c"}); !errors.As(err, &where) || where.To != "b" {
		t.Errorf("to another database afterwards: %v", err)
	}
	if _, err := turnstone.Copy(ctx, d["b"], d["a"], turnstone.CopyOptions{Overwrite: true}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy to where it was: %v", err)
	}
	commitBeside(t, s)
	verify(t, st)
}
