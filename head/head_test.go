package head_test

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	key   = []byte("key")
	when  = time.Unix(1700000000, 42).UTC()
	parts = []head.Part{{Name: "a", Blob: blob.ID{1}, Size: 5, Set: 3, Whole: 3}, {Name: "b", Blob: blob.ID{2}, Size: 1 << 30, Set: 7, Whole: 2}}
	usage = []head.Usage{{Model: "m", Input: 1, Output: 2, CachedInput: 3, CacheWrite: 4, Reasoning: 5}, {}}

	aHead = head.Head{
		Incarnation: head.Incarnation{9}, Bytes: 11, PackBytes: 12, Collected: true, Fed: 13,
		State: head.State{
			Base:  head.Base{Revision: 7, Leaf: graph.ID{1}, Last: graph.ID{2}, Commit: head.CommitID{3}, Depth: 9, PartsAt: 7, Time: when},
			Parts: parts, Usage: usage, Nodes: 10, PartBytes: 13,
		},
	}
	aCommit = head.Commit{
		Revision: 7, Previous: head.CommitID{1}, Leaf: graph.ID{2}, Last: graph.ID{3}, Depth: 9, Nodes: 4, NodeDigest: [32]byte{5},
		PartsAt: 7, Parts: []head.Part{{Name: "a", Set: 3}, parts[1]}, Usage: usage, Turn: "turn", Labels: map[string]string{"a": "1", "b": ""}, Time: when,
	}
	anAbout = head.About{
		ID: "id", Incarnation: head.Incarnation{1}, Metadata: head.Metadata{
			Name: "n", Model: "m", Cwd: "/", Group: "g/h", Labels: map[string]string{"x": "1", "a": ""}, Retention: 8,
			Custom: []byte(`{"a":1}`), HostCreated: when, HostUpdated: when,
		},
		Parent: head.Incarnation{7}, ForkNode: graph.ID{4}, Detached: true, Summary: true, Created: when, Updated: when,
	}
	aLife    = head.Life{Session: keys.Hash{1}, State: head.Deleted, Floor: 2, Epoch: 3, Sealed: 4, SealedBytes: 5, Packed: 3, Forks: 6, Refs: 7, Stones: 8, Runs: []head.Run{{Last: 3, Bits: 1}, {Last: 4}}}
	aPlace   = head.Place{Time: 5, Ahead: true, Lists: []keys.List{{1}, {2, 3}}}
	anOrigin = head.Origin{Ancestors: []head.Ancestor{{Incarnation: head.Incarnation{1}, Revision: 2, Commit: head.CommitID{3}, Node: graph.ID{4}, Nodes: 5, Epoch: 6}}, Depth: 9, Parts: []head.Part{parts[0]}, Genesis: head.CommitID{10}}
)

// records are one of each type, and how to read it back.
func records() map[string]struct {
	record []byte
	want   any
	open   func(key, value []byte) (any, error)
} {
	type r = struct {
		record []byte
		want   any
		open   func(key, value []byte) (any, error)
	}
	return map[string]r{
		"head":   {aHead.Encode(key), &aHead, func(k, v []byte) (any, error) { return head.DecodeHead(k, v) }},
		"commit": {codec.Encode(key, keys.Segment, aCommit.Body()), &aCommit, decodeCommit},
		"about":  {anAbout.Encode(key), &anAbout, func(k, v []byte) (any, error) { return head.DecodeAbout(k, v) }},
		"life":   {aLife.Encode(key), &aLife, func(k, v []byte) (any, error) { return head.DecodeLife(k, v) }},
		"place":  {aPlace.Encode(key), &aPlace, func(k, v []byte) (any, error) { return head.DecodePlace(k, v) }},
		"origin": {anOrigin.Encode(key), &anOrigin, func(k, v []byte) (any, error) { return head.DecodeOrigin(k, v) }},
	}
}

// decodeCommit decodes a record whose body is that of a commit.
func decodeCommit(k, v []byte) (any, error) {
	body, err := codec.Decode(k, v, keys.Segment)
	if err != nil {
		return nil, err
	}
	return head.DecodeCommit(body)
}

func TestRecordsComeBack(t *testing.T) {
	for name, r := range records() {
		for i, v := 0, reflect.ValueOf(r.want).Elem(); i < v.NumField(); i++ {
			if f := v.Type().Field(i); f.IsExported() && v.Field(i).IsZero() {
				t.Errorf("%s: the sample has no %s, so nothing is tested of it", name, f.Name)
			}
		}
		got, err := r.open(key, r.record)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(r.want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", name, err, got, r.want)
		}
		for i := range r.record {
			broken := bytes.Clone(r.record)
			broken[i] ^= 0x10
			if _, err := r.open(key, broken); err == nil {
				t.Errorf("%s: byte %d changed unnoticed", name, i)
			}
		}
	}
}

func TestACommitIDVouchesForAllOfIt(t *testing.T) {
	id := aCommit.ID()
	for name, change := range map[string]func(*head.Commit){
		"revision": func(c *head.Commit) { c.Revision++; c.PartsAt++ },
		"previous": func(c *head.Commit) { c.Previous[31]++ },
		"leaf":     func(c *head.Commit) { c.Leaf[0]++ },
		"last":     func(c *head.Commit) { c.Last[0]++ },
		"digest":   func(c *head.Commit) { c.NodeDigest[0]++ },
		"parts":    func(c *head.Commit) { c.Parts = c.Parts[:1] },
		"usage":    func(c *head.Commit) { c.Usage = nil },
		"turn":     func(c *head.Commit) { c.Turn = "other" },
		"time":     func(c *head.Commit) { c.Time = c.Time.Add(1) },
	} {
		c := aCommit
		change(&c)
		if c.ID() == id {
			t.Errorf("another %s has the same id", name)
		}
	}
}

// Decoders accept only what encoders make, and never panic.
func FuzzDecode(f *testing.F) {
	for _, r := range records() {
		f.Add(r.record[2 : len(r.record)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, typ := range map[string]byte{"head": keys.Head, "commit": keys.Segment, "about": keys.About, "life": keys.Life, "place": keys.Place, "origin": keys.Origin} {
			record := codec.Encode(key, typ, body)
			if name == "about" && len(body) <= 256 { // More is compressed, and of that there are many forms.
				record = codec.Encode(key, typ, codec.Plain(body))
			} else if name == "about" {
				record = codec.Encode(key, typ, codec.Compress(nil, body, codec.Medium))
			}
			got, err := records()[name].open(key, record)
			if err != nil {
				continue
			}
			var again []byte
			switch v := got.(type) {
			case *head.Head:
				again = v.Encode(key)
			case *head.Commit:
				again = codec.Encode(key, typ, v.Body())
			case *head.About:
				again = v.Encode(key)
			case *head.Life:
				again = v.Encode(key)
			case *head.Place:
				again = v.Encode(key)
			case *head.Origin:
				again = v.Encode(key)
			}
			if !bytes.Equal(again, record) {
				t.Errorf("%s: %x was accepted and is encoded as %x", name, record, again)
			}
		}
	})
}

func TestSumAddsByModel(t *testing.T) {
	got := head.AddUsage([]head.Usage{{Model: "a", Input: 1}}, []head.Usage{{Model: "b", Output: 2}, {Model: "a", Input: 3}})
	if fmt.Sprint(got) != fmt.Sprint([]head.Usage{{Model: "a", Input: 4}, {Model: "b", Output: 2}}) {
		t.Error(got)
	}
}

func ExampleSum() {
	total := head.AddUsage(nil, []head.Usage{{Model: "m", Input: 100, Output: 20}})
	total = head.AddUsage(total, []head.Usage{{Model: "m", Input: 150, Output: 5, CachedInput: 100}})
	fmt.Println(total[0].Input, total[0].Output, total[0].CachedInput)
	// Output: 250 25 100
}
