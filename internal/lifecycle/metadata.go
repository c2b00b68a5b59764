package lifecycle

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Field names one field of the metadata.
type Field int

// The fields that SaveMetadata can empty.
const (
	Name Field = iota
	Model
	Cwd
	Keep
	Labels
)

// SaveMetadata empties fields and then merges those of m that are set. It moves no
// revision.
func (st *Store) SaveMetadata(ctx context.Context, s *commit.Session, m *heads.About, empty []Field) error {
	return change.Settle(ctx, st.Engine, func(c *change.Change) error {
		timeKey := st.Space.OrderTime(s.Inc)
		vs, err := st.Engine.Get(ctx, s.HeadKey, s.AboutKey, timeKey)
		if err != nil {
			return err
		}
		if vs[0] == nil {
			return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
		}
		about, err := s.OpenAbout(vs[1])
		if err != nil {
			return err
		}
		if about.Incarnation != s.Inc {
			return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
		}
		unset(about, empty)
		for dst, v := range map[*string]string{&about.Name: m.Name, &about.Model: m.Model, &about.Cwd: m.Cwd} {
			if v != "" {
				*dst = v
			}
		}
		if m.Keep != 0 {
			about.Keep = m.Keep
		}
		about.Labels = merged(about.Labels, m.Labels)
		if len(about.Labels) > st.Limits.Labels {
			return &change.Limit{Limit: "labels", Where: "session " + s.ID, Have: int64(len(about.Labels)), Max: int64(st.Limits.Labels)}
		}
		about.Updated = st.Now()
		var b engine.Batch
		b.Guard(s.AboutKey, vs[1])
		b.Set(s.AboutKey, about.Seal(s.AboutKey))
		heads.MoveInOrder(&b, st.Space, s.Inc, s.Hash, vs[2], about.Updated)
		return c.Apply(ctx, &b)
	})
}

// unset empties fields of a.
func unset(a *heads.About, fields []Field) {
	for _, f := range fields {
		switch f {
		case Name:
			a.Name = ""
		case Model:
			a.Model = ""
		case Cwd:
			a.Cwd = ""
		case Keep:
			a.Keep = 0
		case Labels:
			a.Labels = nil
		}
	}
}

// merged returns labels with changes applied; it shares no memory with them.
func merged(labels, changes map[string]string) map[string]string {
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
