package commit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/crc32"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Field names a field of the metadata that SaveMetadata can empty: see turnstone.Field.
type Field string

// The fields of the metadata.
const (
	Name   Field = "name"
	Model  Field = "model"
	Cwd    Field = "cwd"
	Group  Field = "group"
	Keep   Field = "retention"
	Labels Field = "labels"
)

// Fields are all fields of the metadata.
var Fields = []Field{Name, Model, Cwd, Group, Keep, Labels}

// SaveMetadata empties fields of a session's metadata, and then sets those fields that are
// set in m. Labels are merged. The revision of the session stays the same.
func (st *Lifecycle) SaveMetadata(ctx context.Context, s *history.Session, m *head.Metadata, empty []Field) error {
	var tried []byte // the metadata of the last attempt
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		vs, err := st.Engine.Get(ctx, s.HeadKey, s.AboutKey, st.Space.Place(s.Inc), st.Space.Feed())
		if err != nil {
			return err
		}
		if vs[0] == nil {
			return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
		}
		about, err := s.DecodeMetadata(vs[1])
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
		unset(about, empty)
		set(about, m)
		if len(about.Labels) > st.Limits.Labels {
			return &history.LimitError{Limit: "labels", Where: "session " + s.ID, Have: int64(len(about.Labels)), Max: int64(st.Limits.Labels)}
		}
		about.Updated = st.Now()
		var b engine.Batch
		tried = about.Encode(s.AboutKey)
		b.Guard(s.AboutKey, vs[1])
		b.Set(s.AboutKey, tried)
		h, err := head.DecodeHead(s.HeadKey, vs[0])
		if err != nil {
			return codec.Corrupt(err, "head of session %q", s.ID)
		}
		if _, err := st.tell(&b, vs[3], h, feed.Change{Kind: feed.Saved, Session: s.ID}, uint64(crc32.ChecksumIEEE(tried)), about.Updated); err != nil {
			return err
		}
		place := head.ChangeLists(&b, st.Space, about, s.Hash, vs[2], about.Updated)
		if err := c.Apply(ctx, &b); err != nil {
			return err
		}
		s.SeePlace(place)
		return nil
	})
}

// unset empties fields of a.
func unset(a *head.Metadata, fields []Field) {
	for _, f := range fields {
		switch f {
		case Name:
			a.Name = ""
		case Model:
			a.Model = ""
		case Cwd:
			a.Cwd = ""
		case Group:
			a.Group = ""
		case Keep:
			a.Keep = 0
		case Labels:
			a.Labels = nil
		}
	}
}

// set sets the fields of a that are set in m.
func set(a, m *head.Metadata) {
	a.Name = cmp.Or(m.Name, a.Name)
	a.Model = cmp.Or(m.Model, a.Model)
	a.Cwd = cmp.Or(m.Cwd, a.Cwd)
	a.Group = cmp.Or(m.Group, a.Group)
	a.Keep = cmp.Or(m.Keep, a.Keep)
	a.Labels = mergedLabels(a.Labels, m.Labels)
}

// mergedLabels returns labels with changes applied. A change to the empty string removes a
// label. The result shares no memory with its arguments, and is nil if it has no labels.
func mergedLabels(labels, changes map[string]string) map[string]string {
	out := make(map[string]string, len(labels)+len(changes))
	for _, m := range []map[string]string{labels, changes} {
		for k, v := range m {
			if out[k] = v; v == "" {
				delete(out, k)
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
