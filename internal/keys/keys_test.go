package keys_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	space = keys.New("golden", [32]byte{1, 2, 3})
	inc   = keys.Incarnation{0xaa}
	id    = [32]byte{0xbb, 1, 2, 3, 4, 5, 6, 7, 8}
)

// all makes one key of each kind.
func all() map[string][]byte {
	h, b := space.Session("chat"), space.BlobHash(id)
	return map[string][]byte{
		"A store": keys.StoreKey("golden"), "a about": space.About(h), "b blob": space.Blob(b, 1),
		"d dirty": space.Dirty(inc), "e attachment": space.Attachment(inc, b), "f fork": space.Fork(inc, keys.Incarnation{0xcc}),
		"w predecessor": space.Predecessor(h), "W forgotten": space.Forgotten(), "l life": space.Life(inc),
		"m mark": space.Mark(b), "o origin": space.Origin(inc), "p segment": space.Segment(inc, 258, 2),
		"P version": space.Version(inc, space.PartHash("state"), 258, 2), "s head": space.Head(h), "t tombstone": space.Tombstone(inc, id),
		"r ref": space.Ref(inc, "release"), "g cycle": space.Cycle(), "h edge": space.Edge(b, 's', inc), "j count": space.Count(b),
		"x upload": space.Upload(inc, b), "y index": space.Index(inc, 258, 2), "z bookmark": space.Bookmark(inc),
		"G candidate": space.Candidate(b), "D detached": space.Detached(inc, b), "C copying": keys.CopyingKey("golden"), "k encryption": keys.EncryptionKey("golden"), "S scrub": space.Scrub(), "N maintenance": space.Maintenance(),
		"M touched": keys.TouchedKey("golden", inc),
		"V stale":   space.Stale(inc), "K loose": space.Loose(b),
		"E erased": space.Erased(inc, id, [32]byte{0xdd}),
		"R record": space.Record(inc, "todo/7"), "n listing": space.Listing("todo/7", inc),
		"F feed": space.Feed(), "Q feed end": space.FeedEnd(), "c pending": space.Pending(1700000000000000000, inc, 2, 7), "q change": space.Change(inc, 258),
		"u entry": space.Entry(keys.List{}, 1700000000000000000, inc), "v place": space.Place(inc),
		"u entry of a child": space.Entry(keys.Children(keys.Incarnation{0xcc}), 1700000000000000000, inc),
		"u entry of a group": space.Entry(space.Grouped("app/user"), 1700000000000000000, inc),
		"u entry of a label": space.Entry(space.Labelled("name", "value"), 1700000000000000000, inc),
	}
}

// Changing a key is a change of the format: see testdata/keys.golden.
func TestKeysAreGolden(t *testing.T) {
	golden, err := os.ReadFile("testdata/keys.golden")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, l := range strings.Split(strings.TrimSpace(string(golden)), "\n") {
		name, key, _ := strings.Cut(l, " = ")
		want[name] = key
	}
	for name, key := range all() {
		if got := hex.EncodeToString(key); got != want[name] {
			t.Errorf("%s = %s", name, got)
		}
		letter, _, ok := space.Fields(key)
		if !ok || fmt.Sprintf("%c", letter) != name[:1] {
			t.Errorf("%s is read as a key of %q, %v", name, letter, ok)
		}
		if len(key) > engine.MinLimits.KeyBytes {
			t.Errorf("%s has %d bytes", name, len(key))
		}
		if _, _, ok := space.Fields(append(slices.Clip(key), 0)); ok {
			t.Errorf("%s with a byte too many is taken for a key", name)
		}
	}
	if len(want) != len(all()) {
		t.Errorf("%d golden keys, %d kinds", len(want), len(all()))
	}
}

// The keys of records have text in them: what its length and bytes may be, and where it ends.
func TestKeysOfRecordsAreRead(t *testing.T) {
	for _, text := range []string{"a", "todo/7", "\xff", "é", strings.Repeat("x", keys.MaxText)} {
		for _, of := range []keys.Incarnation{{}, inc, {0, 1}, {0xff, 15: 0xff}} {
			letter, fields, ok := space.Fields(space.Record(of, text))
			if i, s := keys.RecordFields(fields); !ok || letter != keys.Record || i != of || s != text {
				t.Errorf("record %q of %x: %v %q %x", text, of, ok, s, i)
			}
			letter, fields, ok = space.Fields(space.Listing(text, of))
			if s, i := keys.ListingFields(fields); !ok || letter != keys.Listing || i != of || s != text {
				t.Errorf("listing %q of %x: %v %q %x", text, of, ok, s, i)
			}
			if n := len(space.Listing(text, of)); n > engine.MinLimits.KeyBytes {
				t.Errorf("%d bytes", n)
			}
		}
	}
	for _, text := range []string{"", "a\x00b", "\x00", strings.Repeat("x", keys.MaxText+1)} {
		if _, _, ok := space.Fields(space.Record(inc, text)); ok {
			t.Errorf("record %.5q is taken for a key", text)
		}
		if _, _, ok := space.Fields(space.Listing(text, inc)); ok {
			t.Errorf("listing %.5q is taken for a key", text)
		}
	}
	if bytes.Compare(space.Listing("a", keys.Incarnation{0xff}), space.Listing("ab", keys.Incarnation{})) >= 0 {
		t.Error("the listing is not in the order of keys")
	}
}

// But for those of session records.
func TestKeysHoldNoUserText(t *testing.T) {
	for _, text := range []string{"chat", "turn-1", "msg_1", "golden"} {
		for name, key := range all() {
			if bytes.Contains(key, []byte(text)) {
				t.Errorf("%s contains %q", name, text)
			}
		}
	}
	other := keys.New("golden", [32]byte{9})
	if bytes.Equal(other.Head(other.Session("chat")), space.Head(space.Session("chat"))) {
		t.Error("keys can be guessed without the store's secret")
	}
}

func TestListsAreLatestFirst(t *testing.T) {
	if bytes.Compare(space.Entry(keys.List{}, 2, inc), space.Entry(keys.List{}, 1, inc)) >= 0 {
		t.Error("a later time sorts behind an earlier one")
	}
	_, fields, _ := space.Fields(space.Entry(keys.List{7}, 3, inc))
	if list, time, of := keys.EntryFields(fields); list != (keys.List{7}) || time != 3 || of != inc {
		t.Error(list, time, of)
	}
}

// Two labels are never one list, wherever the name ends and the value begins; nor are a label
// and a group.
func TestListsDiffer(t *testing.T) {
	seen := map[keys.List]string{{}: "all"}
	for what, l := range map[string]keys.List{
		"a=bc": space.Labelled("a", "bc"), "ab=c": space.Labelled("ab", "c"), "abc=": space.Labelled("abc", ""),
		"group abc": space.Grouped("abc"), "group a/bc": space.Grouped("a/bc"), "label of a group's bytes": space.Labelled("", "abc"),
	} {
		if other, taken := seen[l]; taken {
			t.Errorf("%s is the list of %s", what, other)
		}
		seen[l] = what
	}
}
