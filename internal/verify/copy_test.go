package verify_test

import (
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
	"github.com/turnstonedb/turnstone/internal/verify"
)

var ctx = context.Background()

// A copy of a store that was upgraded follows the upgrade, and a store that was upgraded
// after it was copied is brought back to the format of its source.
func TestACopyHasTheFormatOfItsSource(t *testing.T) {
	known := head.Formats{Oldest: 1, Newest: 2}
	format := func(e engine.Engine, upgrade bool) uint64 {
		t.Helper()
		s, err := session.OpenNamespace(ctx, e, session.Namespace{MustExist: true, Upgrade: upgrade, Known: known})
		if err != nil {
			t.Fatal(err)
		}
		return s.Format
	}
	from, to := memory.New(), memory.New()
	st, err := turnstone.Open(ctx, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user"}}}); err != nil {
		t.Fatal(err)
	}
	replicated := func(step string, want uint64) {
		t.Helper()
		r, err := verify.Copy(ctx, verify.CopyOptions{From: from, To: to, Known: known})
		if err != nil || r.Sessions != 1 {
			t.Fatalf("%s: %+v, %v", step, r, err)
		}
		if have := format(to, false); have != want {
			t.Errorf("%s: the copy has format %d, want %d", step, have, want)
		}
	}
	replicated("first", 1)
	format(to, true)
	replicated("the copy was upgraded", 1)
	format(from, true)
	replicated("the source was upgraded", 2)
	replicated("again", 2)

	// An upgrade while the store is copied: what is copied then can't be opened.
	from, to = memory.New(), memory.New()
	st, err = turnstone.Open(ctx, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, _, err = st.Create(ctx, turnstone.Request{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	_, err = verify.Copy(ctx, verify.CopyOptions{From: from, To: to, Known: known, Progress: func(phase string, _ int) {
		if phase == "source" {
			format(from, true)
		}
	}})
	if !errors.Is(err, history.ErrConflict) {
		t.Errorf("an upgrade of the source: %v", err)
	}
	if _, err := turnstone.Open(ctx, to, nil); !errors.Is(err, turnstone.ErrUnfinishedCopy) {
		t.Errorf("the copy can be opened: %v", err)
	}
	replicated("after the upgrade", 2)

	alien := memory.New()
	other, err := turnstone.Open(ctx, alien, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := verify.Copy(ctx, verify.CopyOptions{From: from, To: alien, Known: known}); !errors.Is(err, copying.ErrOtherStore) {
		t.Errorf("a copy over another store: %v", err)
	}
	if _, err := verify.Copy(ctx, verify.CopyOptions{From: from, To: memory.New(), Known: head.Known}); err == nil {
		t.Error("a store of a format that is not known was copied")
	}
}
