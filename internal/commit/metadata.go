package commit

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// SaveMetadata merges a change into a session's metadata, after it has emptied fields. The revision of the session
// stays the same.
func (st *Lifecycle) SaveMetadata(ctx context.Context, s *history.Session, change *head.Metadata, empty []head.Field) error {
	return st.saveMetadata(ctx, s, func(about *head.About, now time.Time) (time.Time, bool) {
		about.Merge(change, empty...)
		return now, true
	})
}

// TakeMetadata replaces a session's metadata by those of the same session elsewhere, if they were saved later. It reports
// whether they were.
func (st *Lifecycle) TakeMetadata(ctx context.Context, s *history.Session, there *head.About) (newer bool, err error) {
	err = st.saveMetadata(ctx, s, func(about *head.About, _ time.Time) (time.Time, bool) {
		if newer = there.Updated.After(about.Updated); newer {
			about.Merge(&there.Metadata, head.FieldAll)
		}
		return there.Updated, newer
	})
	return newer && err == nil, err
}

// saveMetadata changes a session's metadata as edit does, which returns when they were saved and whether there is anything
// to do.
func (st *Lifecycle) saveMetadata(ctx context.Context, s *history.Session, edit func(about *head.About, now time.Time) (at time.Time, needed bool)) error {
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
		now := st.Now()
		at, needed := edit(about, now)
		if !needed {
			return nil
		}
		if len(about.Labels) > st.Limits.Labels {
			return &history.LimitError{Limit: "labels", Where: "session " + s.ID, Have: int64(len(about.Labels)), Max: int64(st.Limits.Labels)}
		}
		if at.After(about.Updated) { // It does not go back.
			about.Updated = at
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
