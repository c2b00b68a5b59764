// Package effect keeps the results of effects beside a turn: calls of a model or of a tool, payments, messages that
// were sent. A host that was killed and runs the turn again gets the recorded result, and does not repeat the effect.
// It is for hosts that run a turn in steps of their own, or on Temporal, Restate or the like.
//
// The first writer of an effect wins, and everybody reads what it wrote. A result has any size. Recording it moves no
// revision: an effect is a record of the session (see turnstone.Record), and a large result has other records, its
// pieces, which are written before that one. [Commit] commits the turn and removes its effects. [Drop] removes them
// without a commit.
//
// After the commit, one small record says that the turn stands, until the next turn of the session is committed.
// Whoever still works on the turn, or believes so after a crash, gets [ErrTurnStands]. A host that may come later than
// that has to look first whether the turn stands, for example by the revision that it had loaded.
//
// A host can be killed between an effect and the recording of its result. Only the service that the effect was done to
// knows then what happened: give it the turn and the id of the effect as an idempotency key.
package effect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
)

var (
	// ErrNotRecorded says that no result of the effect stands.
	ErrNotRecorded = errors.New("effect: no result is recorded")
	// ErrTurnStands says that the turn was committed, and its effects are gone.
	ErrTurnStands = errors.New("effect: the turn was committed")
)

const (
	inline = turnstone.MaxRecord - 256 // bytes of a result that its record has room for
	piece  = 48 << 10                  // bytes of a piece of a larger one
	batch  = 16                        // pieces that are written, and records that are read or removed, in one call
)

// A header is the beginning of the record of an effect, up to a line feed. The result follows, if it has no pieces.
type header struct {
	Writer string `json:"writer"` // random: whose record it is
	Pieces int    `json:"pieces,omitempty"`
	Bytes  int    `json:"bytes"`
}

// stands returns the prefix of the keys of a turn's effects.
func stands(turn string) string { return "effect/" + url.PathEscape(turn) + "/" }

// pieces returns the prefix of the keys of the pieces of a turn's results. They begin with a dot, so the list of all
// sessions' records does not have them.
func pieces(turn string) string { return "." + stands(turn) }

// doneKey returns the key of the record that says that the turn stands. There is one in a session.
func doneKey(turn string) string { return doneKeys + url.PathEscape(turn) }

const doneKeys = ".effect.done/"

func key(turn, id string) string { return stands(turn) + url.PathEscape(id) }

func pieceKey(turn, writer string, i int) string {
	return fmt.Sprintf("%s%s/%06d", pieces(turn), writer, i)
}

func check(s turnstone.Persistence, turn string, ids ...string) error {
	if s == nil || turn == "" || slices.Contains(ids, "") {
		return &turnstone.InvalidError{Where: "effect", Reason: "the session is nil, or the turn or the id is empty"}
	}
	return nil
}

// Do returns the recorded result of an effect of a turn. If there is none, Do calls f, and records and returns its
// result. An error of f is returned and not recorded. If two do the same effect at once, both run f, and both get the
// result of the first to record it. If the store is away, Do goes on recording for ten seconds, whether ctx ends or
// not. If that fails too, Do returns f's result beside the error: call Record with it, for another Do would repeat the
// effect.
func Do(ctx context.Context, s turnstone.Persistence, turn, id string, f func(context.Context) ([]byte, error)) ([]byte, error) {
	result, err := Get(ctx, s, turn, id)
	if !errors.Is(err, ErrNotRecorded) {
		return result, err
	}
	if result, err = f(ctx); err != nil {
		return nil, err
	}
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		standing, _, err := Record(recording, s, turn, id, result)
		if err == nil {
			return standing, nil
		}
		again := errors.Is(err, turnstone.ErrOutcomeUnknown) || errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrUnknown)
		if !again || recording.Err() != nil {
			return result, err
		}
		select {
		case <-recording.Done():
		case <-time.After(pause):
		}
	}
}

// Record records the result of an effect of a turn, unless one stands already. It returns the result that stands, and
// whether that is the one of this call. After an error that matches turnstone.ErrOutcomeUnknown the result may stand
// or not; Record and Get tell. The turn and the id are parts of the key of a record, which has at most
// turnstone.MaxRecordKey bytes.
func Record(ctx context.Context, s turnstone.Persistence, turn, id string, result []byte) (standing []byte, first bool, err error) {
	if err := check(s, turn, id); err != nil {
		return nil, false, err
	}
	if standing, err = Get(ctx, s, turn, id); !errors.Is(err, ErrNotRecorded) {
		return standing, false, err
	}
	h := header{Writer: rand.Text(), Bytes: len(result)}
	rest := result
	if len(result) > inline {
		if h.Pieces, err = writePieces(ctx, s, turn, h.Writer, result); err != nil {
			return nil, false, err
		}
		rest = nil
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, false, err
	}
	change := turnstone.RecordChange{Key: key(turn, id), Value: append(append(head, '\n'), rest...), Expect: turnstone.NoRecord}
	_, err = s.ChangeRecords(ctx, change, turnstone.RecordChange{Key: doneKey(turn), Action: turnstone.CheckRecord, Expect: turnstone.NoRecord})
	if err == nil {
		return result, true, nil
	}
	conflict := errors.Is(err, turnstone.ErrRecordConflict)
	if conflict && h.Pieces > 0 { // Nobody refers to them. What is left goes with the turn.
		_ = removeAll(ctx, s, pieces(turn)+h.Writer+"/")
	}
	if conflict {
		standing, err = Get(ctx, s, turn, id)
		return standing, false, err
	}
	return nil, false, err
}

// writePieces writes a result in pieces, and returns their number.
func writePieces(ctx context.Context, s turnstone.Persistence, turn, writer string, result []byte) (n int, err error) {
	var changes []turnstone.RecordChange
	for content := range slices.Chunk(result, piece) {
		changes = append(changes, turnstone.RecordChange{Key: pieceKey(turn, writer, n), Value: content})
		if n++; len(changes) == batch {
			if _, err := s.ChangeRecords(ctx, changes...); err != nil {
				return n, err
			}
			changes = nil
		}
	}
	if len(changes) > 0 {
		_, err = s.ChangeRecords(ctx, changes...)
	}
	return n, err
}

// Get returns the result that stands of an effect of a turn, or ErrNotRecorded, or ErrTurnStands.
func Get(ctx context.Context, s turnstone.Persistence, turn, id string) ([]byte, error) {
	if err := check(s, turn, id); err != nil {
		return nil, err
	}
	for {
		r, err := s.Record(ctx, key(turn, id))
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			_, err = s.Record(ctx, doneKey(turn))
			switch {
			case err == nil:
				err = fmt.Errorf("%w: turn %q", ErrTurnStands, turn)
			case errors.Is(err, turnstone.ErrRecordNotFound):
				err = fmt.Errorf("%w: %q of turn %q", ErrNotRecorded, id, turn)
			}
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		var h header
		head, rest, ok := bytes.Cut(r.Value, []byte("\n"))
		if err := json.Unmarshal(head, &h); err != nil || !ok {
			return nil, fmt.Errorf("effect: record %q is of no effect", r.Key)
		}
		if h.Pieces == 0 {
			if len(rest) != h.Bytes {
				return nil, fmt.Errorf("effect: record %q has %d bytes of %d", r.Key, len(rest), h.Bytes)
			}
			return rest, nil
		}
		result, err := readPieces(ctx, s, turn, &h)
		if err != nil || result != nil {
			return result, err
		}
		// They were removed meanwhile, and so was the record, unless somebody has damaged it.
		if again, err := s.Record(ctx, r.Key); err == nil && again.Version == r.Version {
			return nil, fmt.Errorf("effect: pieces of record %q are missing", r.Key)
		}
	}
}

// readPieces returns a result that is in pieces, or nil if some are not there.
func readPieces(ctx context.Context, s turnstone.Persistence, turn string, h *header) (result []byte, err error) {
	n := 0
	q := turnstone.RecordQuery{Prefix: pieces(turn) + h.Writer + "/", Limit: batch}
	for {
		page, err := s.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			if r.Key != pieceKey(turn, h.Writer, n) {
				return nil, nil
			}
			result = append(result, r.Value...)
			n++
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if n != h.Pieces || len(result) != h.Bytes {
		return nil, nil
	}
	return result, nil
}

// Wait waits until somebody has recorded the result of an effect, and returns it.
func Wait(ctx context.Context, s turnstone.Persistence, turn, id string) (result []byte, err error) {
	if err := check(s, turn, id); err != nil {
		return nil, err
	}
	err = turnstone.AwaitRecords(ctx, s, key(turn, id), func(ctx context.Context) (bool, time.Duration, error) {
		result, err = Get(ctx, s, turn, id)
		if errors.Is(err, ErrNotRecorded) {
			return false, 500 * time.Millisecond, nil // The turn may be committed without the effect.
		}
		return true, 0, err
	})
	return result, err
}

// List returns the ids of those effects of a turn that have a result, in the order of their escaped forms.
func List(ctx context.Context, s turnstone.Persistence, turn string) (ids []string, err error) {
	if err := check(s, turn); err != nil {
		return nil, err
	}
	keys, err := keysOf(ctx, s, stands(turn))
	for _, k := range keys {
		id, uerr := url.PathUnescape(k[len(stands(turn)):])
		if uerr != nil {
			return nil, fmt.Errorf("effect: record %q is of no effect", k)
		}
		ids = append(ids, id)
	}
	return ids, err
}

// keysOf returns the keys of the records of a session with a prefix.
func keysOf(ctx context.Context, s turnstone.Persistence, prefix string) (keys []string, err error) {
	for q := (turnstone.RecordQuery{Prefix: prefix, Limit: batch}); ; {
		page, err := s.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			keys = append(keys, r.Key)
		}
		if q.After = page.Next; q.After == "" {
			return keys, nil
		}
	}
}

// removeAll removes the records of a session with a prefix.
func removeAll(ctx context.Context, s turnstone.Persistence, prefix string) error {
	keys, err := keysOf(ctx, s, prefix)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(keys, batch) {
		var changes []turnstone.RecordChange
		for _, k := range some {
			changes = append(changes, turnstone.RecordChange{Key: k, Action: turnstone.DeleteRecord})
		}
		if _, err := s.ChangeRecords(ctx, changes...); err != nil {
			return err
		}
	}
	return nil
}

// Commit commits the turn c and removes its effects. c.Turn has to be set. One batch has the commit and the removal of
// the effects that stand, so these and c.Records are at most turnstone.MaxRecords - 2 together. After the batch, Commit
// removes the pieces of large results, and what others recorded late. If only that fails, Commit returns the result of
// the turn beside the error, and another Commit or Drop removes the rest.
func Commit(ctx context.Context, s turnstone.Persistence, c turnstone.Commit) (turnstone.Result, error) {
	if err := check(s, c.Turn); err != nil {
		return turnstone.Result{}, err
	}
	keys, err := keysOf(ctx, s, stands(c.Turn))
	if err != nil {
		return turnstone.Result{}, err
	}
	done, err := keysOf(ctx, s, doneKeys)
	if err != nil {
		return turnstone.Result{}, err
	}
	n := len(c.Records)
	c.Records = slices.Clone(c.Records)
	for _, k := range append(keys, done...) {
		if k != doneKey(c.Turn) {
			c.Records = append(c.Records, turnstone.RecordChange{Key: k, Action: turnstone.DeleteRecord})
		}
	}
	c.Records = append(c.Records, turnstone.RecordChange{Key: doneKey(c.Turn)})
	r, err := s.Commit(ctx, c)
	if err != nil {
		return r, err
	}
	r.Records = r.Records[:min(n, len(r.Records))]
	return r, Drop(ctx, s, c.Turn)
}

// Drop removes the effects of a turn without a commit.
func Drop(ctx context.Context, s turnstone.Persistence, turn string) error {
	if err := check(s, turn); err != nil {
		return err
	}
	if err := removeAll(ctx, s, stands(turn)); err != nil {
		return err
	}
	return removeAll(ctx, s, pieces(turn))
}
