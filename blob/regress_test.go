package blob

import (
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func TestAListThatHoldsItselfIsDamage(t *testing.T) {
	e := memory.New()
	sp := keys.New("", [32]byte{1})
	s := New(e, sp, DefaultChunking)
	var l, d ID
	l[0] = 1
	d[0] = 2
	data := codec.Compress(nil, []byte("xx"), codec.Fast)
	var b engine.Batch
	for _, r := range []record{{id: l, form: list, size: 2, items: []item{{d, 2}}}, {id: d, form: delta, size: 2, base: l, data: data}} {
		ks, vs := r.values(sp, sp.BlobHash(r.id))
		b.Set(ks[0], vs[0])
	}
	if err := e.Apply(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	_, err := s.Read(context.Background(), l)
	var ce *codec.CorruptError
	if !errors.As(err, &ce) {
		t.Error(err)
	}
}
