package commit

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// SaveMetadata merges a change into a session's metadata, after it has emptied fields. The revision of the session
// stays the same.
func (st *Lifecycle) SaveMetadata(ctx context.Context, s *history.Session, change *head.Metadata, empty []head.Field) error {
	var tried []byte // the metadata of the last attempt
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		vs, err := st.Engine.Get(ctx, s.HeadKey, s.AboutKey, st.Space.Place(s.Inc), st.Space.Feed())
		if err != nil {
			return err
		}
		if vs[0] == nil {
			return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
		}
		about, err := s.DecodeAbout(vs[1])
		if err != nil {
			return err
		}
		if about.Incarnation != s.Inc {
			return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
		}
		if c.Unknown && bytes.Equal(vs[1], tried) { // That attempt stands.
			s.SeePlace(vs[2])
			return nil
		}
		about.Merge(change, empty...)
		if len(about.Labels) > st.Limits.Labels {
			return &history.LimitError{Limit: "labels", Where: "session " + s.ID, Have: int64(len(about.Labels)), Max: int64(st.Limits.Labels)}
		}
		now := st.Now()
		if now.After(about.Updated) { // It does not go back.
			about.Updated = now
		}
		var b engine.Batch
		tried = about.Encode(s.AboutKey)
		b.Guard(s.AboutKey, vs[1])
		b.Set(s.AboutKey, tried)
		h, err := head.DecodeHead(s.HeadKey, vs[0])
		if err != nil {
			return codec.Corrupt(err, "head of session %q", s.ID)
		}
		if _, err := st.tell(&b, vs[3], h, feed.Change{Kind: feed.Saved, Session: s.ID}, uint64(crc32.ChecksumIEEE(tried)), now); err != nil {
			return err
		}
		place := head.ChangeLists(&b, st.Space, about, s.Hash, vs[2], about.LastUpdate(h))
		if err := c.Apply(ctx, &b); err != nil {
			return err
		}
		s.SeePlace(place)
		return nil
	})
}
