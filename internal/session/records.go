package session

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// ErrRecordNotFound says that a session has no record of a key.
var ErrRecordNotFound = errors.New("turnstone: record not found")

// RecordKeys returns the keys of the engine that DecodeRecords needs to tell the records of a session.
func RecordKeys(s *history.Session, names []string) [][]byte {
	out := make([][]byte, 0, 2*len(names))
	for _, name := range names {
		out = append(out, s.Space.Record(s.Inc, name), s.Space.Listing(name, s.Inc))
	}
	return out
}

// DecodeRecords returns those records that are there. values are those of the keys that RecordKeys returns, from
// one snapshot.
func DecodeRecords(s *history.Session, names []string, values [][]byte) (map[string]*Record, error) {
	out := make(map[string]*Record, len(names))
	for i, name := range names {
		value, listing := values[2*i], values[2*i+1]
		if value == nil && listing == nil {
			continue
		}
		r, err := DecodeRecord(s.Space.Record(s.Inc, name), name, value)
		if err == nil && RecordListed(name) {
			err = DecodeListing(s.Space.Listing(name, s.Inc), listing)
		}
		if err != nil {
			return nil, codec.Corrupt(err, "record %q of %s", name, s.Name)
		}
		out[name] = r
	}
	return out, nil
}

// A RecordQuery says which records to list: those whose keys begin with Prefix, in the order of keys.
type RecordQuery struct {
	Prefix string
	After  string // The Next of the page before, or "" for the first one.
	Limit  int    // How many records a page has at most.
}

// A RecordPage is a part of a list.
type RecordPage struct {
	Items    []RecordItem
	Next     string        // The RecordQuery.After of the next page, or "" if this is the last one.
	Revision head.Revision // Of a session's list: that of the head at the moment that the page shows.
}

// A RecordItem is a record of a list.
type RecordItem struct {
	*Record
	Session string // the session's id
}

// pageBytes is how many bytes of values end a page.
const pageBytes = 1 << 20

// cursor returns the text that stands for a place in a list.
func cursor(place []byte) string { return base64.RawURLEncoding.EncodeToString(place) }

// rest returns the part of a list that a query has not read. head is what all its keys begin with
// before the place that a cursor tells.
func (q *RecordQuery) rest(list engine.Range, head []byte) (engine.Range, error) {
	if q.After == "" {
		return list, nil
	}
	place, err := base64.RawURLEncoding.DecodeString(q.After)
	at := append(slices.Clone(head), place...)
	if err != nil || slices.Compare(at, list.Start) < 0 || list.End != nil && slices.Compare(at, list.End) >= 0 {
		return list, history.NewInvalid("list", "After is no cursor of an earlier page")
	}
	list.Start = engine.Successor(at)
	return list, nil
}

// RecordsOf returns a page of the records of a session. It may have fewer records than the limit although there is a
// next one.
func RecordsOf(ctx context.Context, s *history.Session, q RecordQuery) (*RecordPage, error) {
	from := s.Space.Record(s.Inc, "")
	r, err := q.rest(s.Space.Records(s.Inc, q.Prefix), from)
	if err != nil {
		return nil, err
	}
	r.Limit = q.Limit + 1
	out := &RecordPage{}
	var names []string
	size := 0
	for p, err := range s.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		if len(names) == q.Limit || size >= pageBytes {
			out.Next = cursor([]byte(names[len(names)-1]))
			break
		}
		names, size = append(names, string(p.Key[len(from):])), size+len(p.Value)
	}
	// The pages of the scan may be of several moments, so it only tells which records there are.
	h, values, err := s.Head(ctx, RecordKeys(s, names)...)
	if err != nil {
		return nil, err
	}
	out.Revision = h.Revision
	found, err := DecodeRecords(s, names, values)
	for _, name := range names {
		if r := found[name]; r != nil {
			out.Items = append(out.Items, RecordItem{r, s.ID})
		}
	}
	return out, err
}

// RecordSetSince reports whether a session has a record that was set after a time.
func RecordSetSince(ctx context.Context, s history.Store, inc keys.Incarnation, since time.Time) (bool, error) {
	for p, err := range s.Engine.Scan(ctx, s.Space.Records(inc, "")) {
		if err != nil {
			return false, err
		}
		var r Record
		if _, err := decode(p.Key, p.Value, &r); err != nil {
			return false, codec.Corrupt(err, "record at key %x", p.Key)
		}
		if r.Time.After(since) {
			return true, nil
		}
	}
	return false, nil
}

// RecordsOfStore returns a page of the listed records of all sessions. Those of equal keys have an order that does not
// change. The page may have fewer records than the limit although there is a next one.
func RecordsOfStore(ctx context.Context, s history.Store, q RecordQuery) (*RecordPage, error) {
	from := s.Space.Listings("").Start
	r, err := q.rest(s.Space.Listings(q.Prefix), from)
	if err != nil {
		return nil, err
	}
	r.Limit = q.Limit + 1
	out := &RecordPage{}
	var places [][]byte // what the keys of the entries have after from
	for p, err := range s.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		if err := DecodeListing(p.Key, p.Value); err != nil {
			return nil, codec.Corrupt(err, "list of records at key %x", p.Key)
		}
		places = append(places, slices.Clone(p.Key[len(from):]))
	}
	if len(places) > q.Limit {
		places = places[:q.Limit]
		out.Next = cursor(places[len(places)-1])
	}
	size, read := 0, 0
	for part := range slices.Chunk(places, 32) {
		items, err := readListed(ctx, s, part)
		if err != nil {
			return nil, err
		}
		out.Items, read = append(out.Items, items...), read+len(part)
		for _, item := range items {
			size += len(item.Value)
		}
		if size >= pageBytes && read < len(places) {
			out.Next = cursor(part[len(part)-1])
			break
		}
	}
	return out, nil
}

// readListed returns those records of a list that stand, of sessions that live. A record that is not
// there was deleted since the list was read, by itself or with its session.
func readListed(ctx context.Context, s history.Store, places [][]byte) ([]RecordItem, error) {
	ks := make([][]byte, 2*len(places))
	incs := make([]keys.Incarnation, len(places))
	for i, place := range places {
		var name string
		name, incs[i] = keys.ListingFields(place)
		ks[2*i], ks[2*i+1] = s.Space.Record(incs[i], name), s.Space.Listing(name, incs[i])
	}
	values, err := s.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	abouts, err := s.AboutsOf(ctx, slices.Compact(slices.SortedFunc(slices.Values(incs), func(a, b keys.Incarnation) int { return slices.Compare(a[:], b[:]) })))
	if err != nil {
		return nil, err
	}
	var out []RecordItem
	for i, place := range places {
		about := abouts[incs[i]]
		if about == nil || values[2*i+1] == nil {
			continue
		}
		name, _ := keys.ListingFields(place)
		r, err := DecodeRecord(ks[2*i], name, values[2*i])
		if err != nil {
			return nil, codec.Corrupt(err, "record %q of session %q", name, about.ID)
		}
		out = append(out, RecordItem{r, about.ID})
	}
	return out, nil
}
