package bundle

import (
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Edited returns the frames of a bundle of one session, with what edit makes of its section and its turns, and an end that
// is right.
func Edited(frames [][]byte, kinds string, edit func(about *head.About, epoch, bytes *uint64, turns []history.Turn) []history.Turn) ([][]byte, error) {
	s, err := decodeSection(frames[0], 0)
	if err != nil {
		return nil, err
	}
	base := head.Begin(head.Incarnation{}, &head.Origin{Genesis: s.genesis}).Base
	out := append([][]byte{}, frames...)
	for i, kind := range kinds {
		if kind != kindTurns {
			continue
		}
		turns, err := history.DecodeTurns(frames[i], base)
		if err != nil {
			return nil, err
		}
		n := end{}
		turns = edit(s.about, &s.epoch, &s.bytes, turns)
		out[i] = history.EncodeTurns(turns, base)
		if turns, err = history.DecodeTurns(out[i], base); err != nil { // With the ids that they have now.
			return nil, err
		}
		for j := range turns {
			n.turns, n.nodes = n.turns+1, n.nodes+uint64(len(turns[j].Pack.Nodes))
		}
		last := &turns[len(turns)-1]
		n.last = last.Base(last.ID)
		out[len(out)-1] = n.encode()
	}
	out[0] = s.encode()
	return out, nil
}
