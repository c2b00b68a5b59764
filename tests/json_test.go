package tests

import (
	"encoding/json"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

func TestJSONHasATextForWhatNumbersCanNotSay(t *testing.T) {
	id := graph.ID{1, 2}
	type all struct {
		Revisions  []head.Revision
		Retentions []head.Retention
		Refs       []turnstone.Ref
	}
	want := all{
		[]head.Revision{0, 7, turnstone.AnyRevision, turnstone.RevisionZero},
		[]head.Retention{0, 7, head.KeepAll},
		[]turnstone.Ref{{}, turnstone.RefNew(3), turnstone.RefNone(), turnstone.RefTo(id), turnstone.RefTo(graph.ID{})},
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if s := `{"Revisions":[0,7,"any","zero"],"Retentions":[0,7,"all"],"Refs":[null,3,"none","` + id.String() + `",""]}`; string(text) != s {
		t.Errorf("%s", text)
	}
	var got all
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for i, r := range want.Revisions {
		if got.Revisions[i] != r {
			t.Errorf("revision %v is read as %v", r, got.Revisions[i])
		}
	}
	for i, r := range want.Retentions {
		if got.Retentions[i] != r {
			t.Errorf("retention %v is read as %v", r, got.Retentions[i])
		}
	}
	for i, r := range want.Refs {
		if got.Refs[i] != r {
			t.Errorf("reference %v is read as %v", r, got.Refs[i])
		}
	}
	for _, bad := range []string{`{"Revisions":["some"]}`, `{"Revisions":[-1]}`, `{"Retentions":["none"]}`, `{"Refs":["0102"]}`, `{"Refs":[1.5]}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}
