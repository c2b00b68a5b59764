package blob

import (
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Two lists hold each other: a read of one of them ends with an error that says so.
func TestAListThatHoldsItselfIsDamage(t *testing.T) {
	e := memory.New()
	sp := keys.New("", [32]byte{1})
	s := New(e, sp, DefaultChunking)
	one, two := ID{1}, ID{2}
	var b engine.Batch
	for _, r := range []stored{{id: one, size: 2, items: []item{{two, 2}}}, {id: two, size: 2, items: []item{{one, 2}}}} {
		ks, vs := r.values(sp, sp.BlobHash(r.id))
		b.Set(ks[0], vs[0])
	}
	if err := e.Apply(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	_, err := s.Read(context.Background(), one)
	var ce *damage.CorruptError
	if !errors.As(err, &ce) {
		t.Error(err)
	}
}
