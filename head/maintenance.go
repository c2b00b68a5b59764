package head

import (
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Maintenance says how an operation of maintenance went the last time. It has no text of a session, so that erasing
// need not look for any here.
type Maintenance struct {
	Operation string        `json:"operation"` // for example gc, vacuum, prune, verify or backup
	Ended     time.Time     `json:"ended"`
	Took      time.Duration `json:"nanoseconds"`
	// Problem is the kind of its error (see turnstone.KindOf), or of the first problem that it found; "" without one.
	Problem string            `json:"problem,omitempty"`
	Numbers map[string]uint64 `json:"numbers,omitempty"` // of its report, by their names
}

// Limits of the runs that a store notes.
const (
	MaxMaintenance        = 16 // operations; of more, the one whose last run ended first is forgotten
	MaxMaintenanceNumbers = 32
)

// EncodeMaintenance returns the record of runs for key.
func EncodeMaintenance(key []byte, runs []Maintenance) []byte {
	var e codec.Encoder
	e.Array(len(runs))
	for i := range runs {
		r := &runs[i]
		e.Array(5)
		e.Text(r.Operation)
		e.Uint(uint64(r.Ended.Add(-r.Took).UnixNano()))
		e.Uint(uint64(r.Ended.UnixNano()))
		e.Text(r.Problem)
		e.Array(2 * len(r.Numbers))
		for _, name := range slices.Sorted(maps.Keys(r.Numbers)) {
			e.Text(name)
			e.Uint(r.Numbers[name])
		}
	}
	return codec.Encode(key, keys.Maintenance, e.B)
}

// DecodeMaintenance decodes what EncodeMaintenance encodes. Without a record there were no runs.
func DecodeMaintenance(key, value []byte) ([]Maintenance, error) {
	if value == nil {
		return nil, nil
	}
	body, err := codec.Decode(key, value, keys.Maintenance)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	runs := make([]Maintenance, d.Array(MaxMaintenance))
	for i := range runs {
		r := &runs[i]
		d.Shape(5)
		r.Operation = d.Text()
		began := time.Unix(0, int64(d.Uint()))
		r.Ended = time.Unix(0, int64(d.Uint())).UTC()
		if r.Took = r.Ended.Sub(began); r.Took < 0 {
			d.Fail("run that took %d", r.Took)
		}
		r.Problem = d.Text()
		if n := d.Array(2 * MaxMaintenanceNumbers); n > 0 {
			if n%2 != 0 {
				d.Fail("number without a name")
			}
			r.Numbers = map[string]uint64{}
			for range n / 2 {
				name := d.Text()
				r.Numbers[name] = d.Uint()
			}
		}
	}
	if err := d.Done(); err != nil {
		return nil, err
	}
	return runs, nil
}
