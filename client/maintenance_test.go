package client_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

func TestVF10_TheServerNotesWhatItDoes(t *testing.T) {
	c := storetest.Served(t).(*client.Client)
	ran := func() map[string]bool {
		t.Helper()
		s, err := c.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, m := range s.Maintenance {
			out[m.Operation] = m.Problem == "" && !m.Ended.IsZero()
		}
		return out
	}
	s, _, err := c.Create(t.Context(), turnstone.Request{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func() error{
		func() error { _, err := c.GC(t.Context(), gc.Options{DryRun: true}); return err },
		func() error { _, err := c.Prune(t.Context(), gc.PruneOptions{Revisions: 1, DryRun: true}); return err },
		func() error { _, err := s.GC(t.Context(), gc.Options{}); return err },
		func() error { _, err := s.Vacuum(t.Context(), gc.VacuumOptions{}); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	if got := ran(); len(got) > 0 {
		t.Errorf("%v", got)
	}
	for name, f := range map[string]func() error{
		"gc":     func() error { _, err := c.GC(t.Context(), gc.Options{}); return err },
		"vacuum": func() error { _, err := c.Vacuum(t.Context(), gc.VacuumOptions{}); return err },
		"prune":  func() error { _, err := c.Prune(t.Context(), gc.PruneOptions{Revisions: 1}); return err },
		"verify": func() error { _, err := c.Verify(t.Context(), turnstone.VerifyOptions{}); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if got := ran(); !got[name] {
			t.Errorf("%s: %v", name, got)
		}
	}
}
