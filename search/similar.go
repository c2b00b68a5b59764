package search

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// Embedding makes vectors of texts, so that texts of a similar meaning have similar vectors.
type Embedding struct {
	// Model names what makes the vectors. If it is another one than before, Sync makes all vectors anew.
	Model string
	// Embed returns a vector for each text, all of one length. It is given at most 64 texts at once, none of them empty,
	// and has to cut those that are too long for the model.
	Embed func(ctx context.Context, texts []string) ([][]float32, error)
}

// ErrVectors means that an Embedding has returned what are no vectors for its texts: too few, of another length, or not
// finite.
var ErrVectors = errors.New("search: unusable vectors")

// embedAtOnce is how many texts are embedded at once.
const embedAtOnce = 64

// embed makes vectors of the nodes that have none.
func (x *Index) embed(ctx context.Context, st *turnstone.Store, r *Report) error {
	if err := x.write(ctx, func(tx *sql.Tx) error {
		model, err := get(ctx, tx, "model")
		if err != nil || model == x.o.Embedding.Model {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM vectors"); err != nil {
			return err
		}
		return errors.Join(set(ctx, tx, "model", x.o.Embedding.Model), set(ctx, tx, "length", ""), set(ctx, tx, "embedded", ""), set(ctx, tx, "purge", "due"))
	}); err != nil {
		return err
	}
	f := finding{Index: x, st: st, q: &Query{}, sessions: map[int64]*source{}}
	for {
		done, err := x.number(ctx, x.db, "embedded")
		if err != nil {
			return err
		}
		some, err := f.after(ctx, done)
		if err != nil || len(some) == 0 {
			return err
		}
		vectors, err := f.vectors(ctx, some)
		if err != nil {
			return err
		}
		if err := x.write(ctx, func(tx *sql.Tx) error { return x.keep(ctx, tx, done, some, vectors, r) }); err != nil {
			return err
		}
	}
}

// number returns a number of the table state, or 0.
func (x *Index) number(ctx context.Context, q querier, name string) (int64, error) {
	text, err := get(ctx, q, name)
	if err != nil || text == "" {
		return 0, failed(ctx, err)
	}
	return strconv.ParseInt(text, 10, 64)
}

// after returns the next candidates whose numbers are greater than one, in order.
func (f *finding) after(ctx context.Context, number int64) (out []candidate, err error) {
	rows, err := f.db.QueryContext(ctx, "SELECT number, session, node FROM nodes WHERE number>? ORDER BY number LIMIT ?", number, embedAtOnce)
	if err != nil {
		return nil, failed(ctx, err)
	}
	return candidates(ctx, rows)
}

// vectors returns the vectors of candidates; nil for one that is gone, has no text, or is like nothing.
func (f *finding) vectors(ctx context.Context, some []candidate) ([][]float32, error) {
	out := make([][]float32, len(some))
	var texts []string
	var of []int
	for i, c := range some {
		s, err := f.source(ctx, c.session)
		if err != nil {
			return nil, err
		}
		if s.session == nil {
			continue
		}
		n, err := s.session.Node(ctx, c.node)
		switch {
		case absent(err):
			continue
		case err != nil:
			return nil, err
		}
		if text := f.Index.o.Text(&n); strings.TrimSpace(text) != "" {
			texts, of = append(texts, text), append(of, i)
		}
	}
	if len(texts) == 0 {
		return out, nil
	}
	vectors, err := f.embedded(ctx, texts)
	for i := range vectors {
		out[of[i]] = vectors[i]
	}
	return out, err
}

// embedded returns the vectors of texts, each of the length 1, or nil if it is zero.
func (x *Index) embedded(ctx context.Context, texts []string) ([][]float32, error) {
	vectors, err := x.o.Embedding.Embed(ctx, texts)
	if err != nil {
		return nil, fmt.Errorf("search: embedding: %w", err)
	}
	if len(vectors) != len(texts) {
		return nil, fmt.Errorf("%w: %d for %d texts", ErrVectors, len(vectors), len(texts))
	}
	out := make([][]float32, len(vectors)) // What Embed returns may be its own.
	for i, v := range vectors {
		if len(v) != len(vectors[0]) || len(v) == 0 {
			return nil, fmt.Errorf("%w: one has %d numbers, another %d", ErrVectors, len(v), len(vectors[0]))
		}
		var sum float64
		for _, c := range v {
			sum += float64(c) * float64(c)
		}
		if math.IsNaN(sum) || math.IsInf(sum, 0) {
			return nil, fmt.Errorf("%w: one is not finite", ErrVectors)
		}
		if sum == 0 {
			continue
		}
		out[i] = make([]float32, len(v))
		for j, c := range v {
			out[i][j] = float32(float64(c) / math.Sqrt(sum))
		}
	}
	return out, nil
}

// keep stores vectors of candidates that are still there, unless another process has done so since done was read.
func (x *Index) keep(ctx context.Context, tx *sql.Tx, done int64, some []candidate, vectors [][]float32, r *Report) error {
	length, err := x.compatible(ctx, tx)
	if err != nil {
		return err
	}
	if now, err := x.number(ctx, tx, "embedded"); err != nil || now != done {
		return err
	}
	for i, v := range vectors {
		if v == nil {
			continue
		}
		if length == 0 {
			length = int64(len(v))
			if err := set(ctx, tx, "length", strconv.FormatInt(length, 10)); err != nil {
				return err
			}
		}
		if int64(len(v)) != length {
			return fmt.Errorf("%w: %d numbers, want %d as the others of model %q have: give another model another name", ErrVectors, len(v), length, x.o.Embedding.Model)
		}
		made, err := tx.ExecContext(ctx, "INSERT INTO vectors SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM nodes WHERE number=?1)", some[i].number, packed(v))
		if err != nil {
			return err
		}
		n, err := made.RowsAffected()
		if err != nil {
			return err
		}
		r.Embedded += int(n)
	}
	return set(ctx, tx, "embedded", strconv.FormatInt(some[len(some)-1].number, 10))
}

// compatible returns the length of the vectors that the index has, or 0, and an error if they are of another model.
func (x *Index) compatible(ctx context.Context, q querier) (length int64, err error) {
	model, err := get(ctx, q, "model")
	if err != nil {
		return 0, failed(ctx, err)
	}
	if model != x.o.Embedding.Model {
		return 0, fmt.Errorf("%w: those of the index are of model %q, want %q: Sync makes them anew", ErrVectors, model, x.o.Embedding.Model)
	}
	return x.number(ctx, q, "length")
}

// packed returns a vector as the index has it: numbers of 32 bits (IEEE 754), little-endian.
func packed(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, c := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(c))
	}
	return out
}

// likeness returns the cosine of the angle between a vector and a packed one, both of the length 1.
func likeness(v []float32, other []byte) (sum float64) {
	for i := range min(len(v), len(other)/4) {
		sum += float64(v[i]) * float64(math.Float32frombits(binary.LittleEndian.Uint32(other[4*i:])))
	}
	return sum
}

// A likely node is a candidate with its likeness to a text.
type likely struct {
	candidate
	score float64
}

// Similar returns the nodes whose meaning is the most like that of a text, the most similar ones first: Score is the
// cosine of the angle between the vectors. If q is not nil, they are what it finds. Options must have an Embedding, and
// Sync has made the vectors. It compares the text with the vector of each node that q may find, and reads the results in
// the store. o.Newest has no meaning here.
func (x *Index) Similar(ctx context.Context, st *turnstone.Store, text string, q *Query, o FindOptions) ([]Result, error) {
	if x.o.Embedding == nil {
		return nil, &turnstone.InvalidError{Where: "search", Reason: "the index has no Embedding"}
	}
	if strings.TrimSpace(text) == "" {
		return nil, &turnstone.InvalidError{Where: "search", Reason: "the text is empty"}
	}
	limit, err := o.limit()
	if err != nil {
		return nil, err
	}
	o.Limit = limit
	vectors, err := x.embedded(ctx, []string{text})
	if err != nil || vectors[0] == nil {
		return nil, err
	}
	if q == nil {
		q = &Query{}
	}
	f := finding{Index: x, st: st, q: q, o: o, sessions: map[int64]*source{}, seen: map[graph.ID]bool{}}
	for most := 4 * limit; ; most *= 8 { // Some of those compared may be gone, or not be what q finds.
		best, more, err := f.nearest(ctx, vectors[0], most)
		if err != nil {
			return nil, err
		}
		f.results = nil
		clear(f.seen)
		for _, l := range best {
			if len(f.results) == limit {
				break
			}
			had := len(f.results)
			if err := f.read(ctx, []candidate{l.candidate}, func(candidate) bool { return true }); err != nil {
				return nil, err
			}
			for i := had; i < len(f.results); i++ {
				f.results[i].Score = l.score
			}
		}
		if len(f.results) == limit || !more {
			break
		}
	}
	if o.Branches {
		err = f.branches(ctx)
	}
	return f.results, err
}

// nearest returns the candidates that are the most like a vector, at most so many. more says whether there are others.
func (f *finding) nearest(ctx context.Context, v []float32, most int) (best []likely, more bool, err error) {
	chosen, all, err := f.chosen(ctx)
	if err != nil || !all && len(chosen) == 0 {
		return nil, false, err
	}
	named := chosen
	if all || len(chosen) > maxNamed {
		named = nil
	}
	tx, err := f.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // The vectors are those of the model that it checks.
	if err != nil {
		return nil, false, failed(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // It has read only.
	length, err := f.compatible(ctx, tx)
	if err != nil {
		return nil, false, err
	}
	if length != 0 && length != int64(len(v)) {
		return nil, false, fmt.Errorf("%w: %d numbers, want %d as those of the index have", ErrVectors, len(v), length)
	}
	const columns = "SELECT n.number, n.session, n.node, v.vector FROM "
	asked, rows := f.q.candidates(named), (*sql.Rows)(nil)
	if asked == "" {
		rows, err = tx.QueryContext(ctx, columns+"vectors v JOIN nodes n ON n.number=v.number")
	} else {
		rows, err = tx.QueryContext(ctx, columns+"words JOIN nodes n ON n.number=words.rowid JOIN vectors v ON v.number=n.number WHERE words MATCH ?", asked)
	}
	if err != nil {
		return nil, false, failed(ctx, err)
	}
	defer rows.Close()
	order := func(a, b likely) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.number, a.number)) }
	var node, vector sql.RawBytes
	for rows.Next() {
		var l likely
		if err := rows.Scan(&l.number, &l.session, &node, &vector); err != nil {
			return nil, false, failed(ctx, err)
		}
		if !all && named == nil && !sorted(chosen, l.session) {
			continue
		}
		l.node, l.score = graph.ID(node), likeness(v, vector)
		if best = append(best, l); len(best) == 2*most {
			slices.SortFunc(best, order)
			best, more = best[:most], true
		}
	}
	slices.SortFunc(best, order)
	if len(best) > most {
		best, more = best[:most], true
	}
	return best, more, failed(ctx, rows.Err())
}
