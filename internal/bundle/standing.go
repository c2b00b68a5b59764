package bundle

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file says where a session stands, so that two stores find out what one of them lacks.

// A Standing says where a session stands.
type Standing struct {
	Inc     head.Incarnation
	Genesis head.CommitID
	Head    Point
	Parent  head.Incarnation // of a fork, else zero
	Rest    [codec.HashSize]byte
	At      []head.CommitID // at the revisions that were asked for; zero beyond the head
}

// StandingOf returns where a session stands, with its commits at some revisions.
func StandingOf(ctx context.Context, st history.Store, id string, at []head.Revision) (*Standing, error) {
	b := writer{Store: st.Uncached()}
	s, state, err := b.OpenSession(ctx, id)
	if err != nil {
		return nil, err
	}
	return history.Read(ctx, s, func(l *history.Lifecycles) (*Standing, error) {
		out := &Standing{Inc: s.Inc, Genesis: head.Genesis(s.Inc, s.Origin), Head: pointOf(state.Head.Base), At: make([]head.CommitID, len(at))}
		for i, r := range at {
			switch {
			case r == 0:
				out.At[i] = out.Genesis
			case r <= out.Head.Revision:
				t, err := s.TurnAt(ctx, r)
				if err != nil {
					return nil, err
				}
				out.At[i] = t.ID
			}
		}
		about, err := b.about(ctx, &source{Session: s})
		if err != nil {
			return nil, err
		}
		out.Parent = about.Parent
		out.Rest, err = b.rest(ctx, l, about)
		return out, err
	})
}

// rest returns what stands for all that a session has besides its commits, and that a bundle brings to one that exists.
// What is changed meanwhile may be in it or not.
func (b *writer) rest(ctx context.Context, l *history.Lifecycles, about *head.About) (sum [codec.HashSize]byte, err error) {
	s, h := l.Session, codec.RestHash.New()
	add := func(text []byte) {
		h.Write(binary.AppendUvarint(nil, uint64(len(text))))
		h.Write(text)
	}
	add((&head.About{Metadata: about.Metadata, Created: about.Created, Updated: about.Updated}).Body())
	stones, err := b.stonesOf(ctx, s.Inc)
	if err != nil {
		return sum, err
	}
	var hidden [][8]byte
	for _, stone := range stones {
		if !stone.Pruned { // What is pruned is a matter of each store.
			hidden = append(hidden, stone.ID)
		}
	}
	stand := sumOf(hidden)
	add(stand.sum[:])
	kept, err := head.ReadKept(ctx, b.Engine, b.Space, s.Inc, l.Own)
	if err != nil {
		return sum, err
	}
	slices.SortFunc(kept, func(a, b head.Kept) int { return cmp.Compare(a.Name, b.Name) })
	add(encodeKept(kept))
	for p, err := range b.Engine.Scan(ctx, b.Space.Of(keys.Record, s.Inc)) {
		if err != nil {
			return sum, err
		}
		_, fields, _ := b.Space.Fields(p.Key)
		_, text := keys.RecordFields(fields)
		version, err := session.DecodeRecordVersion(p.Key, p.Value)
		if err != nil {
			return sum, codec.Corrupt(err, "record %q of %s", text, s.Name)
		}
		add([]byte(text))
		add(version[:])
	}
	return h.Sum(), nil
}
