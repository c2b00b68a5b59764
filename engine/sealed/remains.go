package sealed

import (
	"context"
	"fmt"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Scanner returns what reads the store of a namespace from a damaged database: see package recovery. If the store is
// not encrypted, that is from itself. If it is, the keyring must have its keyset: the error is ErrKey otherwise. Ring
// may be nil. If the database can't read one record of a session, the Scanner yields no record of that session.
func Scanner(ctx context.Context, from engine.Scanner, ring *Keyring, namespace string) (engine.Scanner, error) {
	const looked = 100 // values, which tell whether the store is encrypted: the note may be what is damaged
	all, encrypted := 0, 0
	for p, err := range engine.Around(ctx, from, engine.PrefixRange(keys.Prefix(namespace)), func(engine.Gap) {}) {
		if err != nil {
			return nil, err
		}
		if Encrypted(p.Value) {
			encrypted++
		}
		if all++; all == looked {
			break
		}
	}
	if 2*encrypted <= all {
		return from, nil
	}
	if ring == nil {
		return nil, fmt.Errorf("%w for namespace %q", ErrKey, namespace)
	}
	set, err := ring.keyset(ctx, namespace)
	if err != nil {
		return nil, err
	}
	knowing := func([]byte) (*keyset, error) { return set, nil }
	return &remains{scanning{from: from, set: set, note: keys.EncryptionKey(namespace), knowing: knowing}, keys.Prefix(namespace)}, nil
}

type remains struct {
	scanning
	prefix []byte
}

// Scan implements engine.Scanner.
func (r *remains) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return r.scan(ctx, clip(of, r.prefix))
}
