package turnstone

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/commit"
)

// MarshalJSON returns the id of the node for RefTo, the index for RefNew, "none" for RefNone, and null for the zero Ref.
func (r Ref) MarshalJSON() ([]byte, error) {
	switch r.ref.Kind {
	case commit.RefExisting:
		return json.Marshal(r.ref.ID)
	case commit.RefNew:
		return json.Marshal(r.ref.Index)
	case commit.RefNone:
		return []byte(`"none"`), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Ref) UnmarshalJSON(text []byte) error {
	var index int
	var id graph.ID
	switch {
	case bytes.Equal(text, []byte("null")):
		*r = Ref{}
	case bytes.Equal(text, []byte(`"none"`)):
		*r = RefNone()
	case json.Unmarshal(text, &index) == nil:
		*r = RefNew(index)
	case text[0] == '"' && json.Unmarshal(text, &id) == nil:
		*r = RefTo(id)
	default:
		return fmt.Errorf("%.80s refers to no node: want its id, the index of a new one, or \"none\"", text)
	}
	return nil
}

// MarshalJSON returns a number, or "all" for KeepAll, which is beyond the integers that all readers of JSON have.
func (r Retention) MarshalJSON() ([]byte, error) {
	if r == KeepAll {
		return []byte(`"all"`), nil
	}
	return json.Marshal(uint64(r))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Retention) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte(`"all"`)) {
		*r = KeepAll
		return nil
	}
	if err := json.Unmarshal(text, (*uint64)(r)); err != nil {
		return fmt.Errorf("%.80s is no retention: want a number, or \"all\"", text)
	}
	return nil
}
