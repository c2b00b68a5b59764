package importer_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

func TestWhatPeopleGaveASessionStaysWhenItsFileGrows(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all[:4])).Session
		s := session(t, st, id)
		if err := s.SaveMetadata(ctx, head.Metadata{Name: "mine", Labels: map[string]string{"rating": "good"}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Keep(ctx, "v1", 1); err != nil {
			t.Fatal(err)
		}
		state := loaded(t, s, turnstone.Scope{})
		fork, _, err := st.Create(ctx, turnstone.Request{ID: "fork", Parent: id, ForkNode: state.Nodes[1].ID})
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Delete(ctx, "renamed", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		if r := bring(t, st, clock, name, file(all)); r.Session != id || r.Outcome != importer.Grown {
			t.Fatalf("%+v", r)
		}
		if i := infoOf(t, s); i.Name != "mine" || i.Labels["rating"] != "good" {
			t.Errorf("%s: %+v", name, i)
		}
		if kept, err := s.Kept(ctx); err != nil || len(kept) != 1 || kept[0].Name != "v1" {
			t.Errorf("%s: kept %v, %v", name, kept, err)
		}
		if state := loaded(t, fork, turnstone.Scope{}); len(state.Nodes) != 2 {
			t.Errorf("%s: the fork has %d nodes", name, len(state.Nodes))
		}
		if i := infoOf(t, fork); i.Parent != id {
			t.Errorf("%s: the fork comes from %q", name, i.Parent)
		}
	}
}

// A host may go on from an imported session with its own messages. Side events that the
// file gets later do not move the leaf. New messages in the file do, and then the host's
// messages are a branch.
func TestWhatAHostCommittedSinceStays(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["claude.jsonl"]
	id := bring(t, st, clock, "claude.jsonl", file(all[:9])).Session
	s := session(t, st, id)
	r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("of the host")}}})
	if err != nil {
		t.Fatal(err)
	}
	leaf := func() graph.ID { return infoOf(t, s).Leaf }
	noted := append(slices.Clone(all[:9]), `{"type":"file-history-snapshot","messageId":"a4","snapshot":{}}`)
	if got := bring(t, st, clock, "claude.jsonl", file(noted)); got.Outcome != importer.Grown || leaf() != r.Leaf {
		t.Errorf("%+v", got)
	}
	if got := bring(t, st, clock, "claude.jsonl", file(all[:9])); got.Outcome != importer.Unchanged || leaf() != r.Leaf {
		t.Errorf("%+v", got)
	}
	if got := exported(t, st, id); got != file(noted)+"of the host\n" {
		t.Errorf("exported as\n%s", got)
	}
	said := append(noted, all[9])
	if got := bring(t, st, clock, "claude.jsonl", file(said)); got.Outcome != importer.Branched || leaf() == r.Leaf {
		t.Errorf("%+v", got)
	}
	if _, err := s.Node(ctx, r.Leaf); err != nil {
		t.Error(err)
	}
	if got := exported(t, st, id); got != file(said)+"of the host\n" {
		t.Errorf("exported as\n%s", got)
	}
}

func TestARenamedSessionGrowsWithItsFile(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	bring(t, st, clock, "plain.jsonl", file(all[:3]))
	if err := session(t, st, "plain").Rename(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, "plain.jsonl", file(all)); r.Session != "other" || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
}

func TestWhatWasTombstonedDoesNotComeBackWhenAFileGrows(t *testing.T) {
	for name, all := range appended {
		for dead := range 4 {
			st, clock := openClocked(t)
			id := bring(t, st, clock, name, file(all[:4])).Session
			s := session(t, st, id)
			state := loaded(t, s, turnstone.Scope{Full: true})
			if err := s.Tombstone(ctx, state.Nodes[dead].ID); err != nil {
				t.Fatal(err)
			}
			if r := bring(t, st, clock, name, file(all)); r.Added != len(all)-4 {
				t.Fatalf("%s without node %d: %+v", name, dead, r)
			}
			got, want := payloads(loaded(t, s, turnstone.Scope{Full: true}).Nodes), slices.Delete(slices.Clone(all), dead, dead+1)
			if !slices.Equal(got, want) {
				t.Errorf("%s without node %d:\n%s", name, dead, strings.Join(got, "\n"))
			}
			// If the file was edited as well, the import can't tell, and must not fail.
			edited := slices.Clone(all)
			edited[0] = strings.Replace(edited[0], "{", `{"edited":1,`, 1)
			bring(t, st, clock, name, file(edited))
			verify(t, st)
		}
	}
}

func TestReplaceDeletesAndSaysWhatIsLost(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	id := bring(t, st, clock, "plain.jsonl", file(all)).Session
	s := session(t, st, id)
	if err := errors.Join(s.Keep(ctx, "v1", 1), s.SaveMetadata(ctx, head.Metadata{Labels: map[string]string{"rating": "good"}})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "fork", Parent: id}); err != nil {
		t.Fatal(err)
	}
	convs := parse(t, "plain.jsonl", file(all[:3]))
	losses, err := importer.Losses(ctx, st, convs)
	if err != nil || len(losses) != 1 || losses[0].ID != id || losses[0].Kept != 1 || losses[0].Children != 1 || losses[0].Labels["rating"] != "good" {
		t.Fatalf("%+v, %v", losses, err)
	}
	load(t, st, convs, importer.Options{Replace: true}, importer.Replaced)
	if got := exported(t, st, id); got != file(all[:3]) {
		t.Errorf("%s", got)
	}
	if losses, err = importer.Losses(ctx, st, convs); err != nil || len(losses) != 0 {
		t.Errorf("%+v, %v", losses, err)
	}
}
