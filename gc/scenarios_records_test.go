package gc_test

import (
	"errors"

	"github.com/turnstonedb/turnstone"
)

func sets(key string) []turnstone.RecordChange {
	return []turnstone.RecordChange{{Key: key, Value: []byte("x")}}
}

// changesRecord sets a record of a session. If its reply is lost, it need not know whether it has.
func changesRecord(id, key string) func(w *world) error {
	return func(w *world) error {
		s, err := w.Session(w.ctx, id)
		if err == nil {
			_, err = s.ChangeRecords(w.ctx, sets(key)...)
		}
		if errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return nil
		}
		return fair(err)
	}
}

var recordScenarios = []scenario{
	{
		name: "records, delete and vacuum",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			return both(err, w.commit("a", turnstone.Commit{Records: sets("old")}), collect(w))
		},
		actors: []party{
			{"set", changesRecord("a", "new")},
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
			{"vacuum", vacuum},
		},
	},
	{
		name: "records of two sessions, fork, delete and vacuum",
		before: func(w *world) error {
			for _, id := range []string{"a", "b"} {
				if _, err := w.create(turnstone.Request{ID: id}); err != nil {
					return err
				}
			}
			return both(w.commit("a", says([]byte("1"))), changesRecord("a", "old")(w), collect(w))
		},
		actors: []party{
			{"both", func(w *world) error {
				a, err := w.Session(w.ctx, "a")
				if err != nil {
					return fair(err)
				}
				b, err := w.Session(w.ctx, "b")
				if err != nil {
					return fair(err)
				}
				_, err = w.CommitAll(w.ctx,
					turnstone.SessionCommit{Session: a, RecordsOnly: true, Commit: turnstone.Commit{Records: sets("new")}},
					turnstone.SessionCommit{Session: b, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Records: sets("new")}})
				return fair(err)
			}},
			{"delete", func(w *world) error {
				_, err := w.create(turnstone.Request{ID: "f", Parent: "a"})
				return both(fair(err), w.Delete(w.ctx, "a", turnstone.KeepChildren))
			}},
			{"vacuum", vacuum},
		},
	},
	{
		name: "a fork with its first commit, delete and vacuum", before: withCheckpoint,
		actors: []party{
			{"fork", func(w *world) error {
				c := says(big)
				c.Records = sets("k")
				_, err := w.CommitAll(w.ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "f", Parent: "a"}, Commit: c})
				return fair(err)
			}},
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
			{"vacuum", vacuum},
		},
	},
}
