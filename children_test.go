package turnstone_test

import (
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// F5: children belong to the session that they were made of, whatever its id is.
func TestF5_ChildrenFollowTheirParent(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	create(t, st, turnstone.Request{ID: "p"}, []byte("1"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "p"})
	create(t, st, turnstone.Request{ID: "child", Parent: "p", Detached: true})
	parents := func(of string, want ...string) {
		t.Helper()
		page, err := st.List(ctx, turnstone.ListOptions{Parent: of})
		if err != nil || len(page.Sessions) != len(want) {
			t.Fatalf("children of %q: %d, %v", of, len(page.Sessions), err)
		}
		for _, i := range page.Sessions {
			if i.Parent != of {
				t.Errorf("the parent of %q is %q, not %q", i.ID, i.Parent, of)
			}
		}
	}
	parents("p", "fork", "child")
	if err := st.Rename(ctx, "p", "q"); err != nil {
		t.Fatal(err)
	}
	create(t, st, turnstone.Request{ID: "p"}, []byte("another"))
	parents("p")
	parents("q", "fork", "child")
	if err := st.Delete(ctx, "p", turnstone.RefuseChildren); err != nil {
		t.Errorf("the other session has no children: %v", err)
	}
	if err := st.Delete(ctx, "q", turnstone.RefuseChildren); !errors.Is(err, turnstone.ErrHasChildren) {
		t.Error(err)
	}
	if err := st.Delete(ctx, "q", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	for _, id := range []string{"fork", "child"} {
		s, err := st.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if i, err := s.Info(ctx); err != nil || i.Parent != "" {
			t.Errorf("%q has the parent %q, %v", id, i.Parent, err)
		}
	}
	if _, err := st.List(ctx, turnstone.ListOptions{Parent: "q"}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	verify(t, st)
}
