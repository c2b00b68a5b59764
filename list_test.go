package turnstone_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A session that is renamed while a page of the list is read is in the page.
func TestM3_ASessionThatIsRenamedMeanwhileIsListed(t *testing.T) {
	e := &interceptor{Engine: memory.New()}
	st := openStore(t, e, nil)
	create(t, st, turnstone.Request{ID: "a"})
	create(t, st, turnstone.Request{ID: "b"})
	renamed := false
	e.scan = func(engine.Range) func(engine.Pair) error {
		return func(engine.Pair) error {
			if renamed {
				return nil
			}
			renamed = true
			if err := st.Rename(ctx, "b", "c"); err != nil {
				t.Error(err)
			}
			if err := st.Rename(ctx, "a", "d"); err != nil {
				t.Error(err)
			}
			return nil
		}
	}
	p, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(p.Sessions) != 2 || !renamed {
		t.Error(len(p.Sessions), err, "renamed meanwhile:", renamed)
	}
}
