package adapter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// moving is a store that updates sessions after each page of a list. meanwhile says which.
type moving struct {
	turnstone.Factory
	sessions  []turnstone.Info // the most recently updated first
	now       time.Time
	meanwhile func(page int) []string
	pages     int
}

func (m *moving) update(id string) {
	i := turnstone.Info{ID: id, Created: m.now}
	m.sessions = slices.DeleteFunc(m.sessions, func(s turnstone.Info) bool {
		if s.ID == id {
			i = s
		}
		return s.ID == id
	})
	m.now = m.now.Add(time.Second)
	i.Updated = m.now
	m.sessions = slices.Insert(m.sessions, 0, i)
}

func (m *moving) List(_ context.Context, o turnstone.ListOptions) (page turnstone.Page, _ error) {
	for _, s := range m.sessions {
		if o.After != "" && s.Updated.Format(time.RFC3339) >= o.After {
			continue
		}
		if len(page.Sessions) == 3 {
			page.Next = page.Sessions[2].Updated.Format(time.RFC3339)
			break
		}
		page.Sessions = append(page.Sessions, s)
	}
	for _, id := range m.meanwhile(m.pages) {
		m.update(id)
	}
	m.pages++
	return page, nil
}

// Listed finds the sessions that were there when it began, though others use them meanwhile. It ends also if somebody makes
// sessions without end.
func TestKT2_AListMissesNothingAndEnds(t *testing.T) {
	made := 0
	for name, meanwhile := range map[string]func(page int) []string{
		"nothing": func(int) []string { return nil },
		"one that was not read, and then what was": func(page int) []string {
			return map[int][]string{0: {"0", "11", "10", "9"}}[page]
		},
		"one that was not read, twice": func(page int) []string {
			return map[int][]string{2: {"0", "11", "10", "9"}, 4: {"0"}}[page]
		},
		"another one each time": func(page int) []string { return []string{fmt.Sprint(page % 12)} },
		"new ones each time": func(int) []string {
			made += 4
			return []string{fmt.Sprint("new ", made), fmt.Sprint("new ", made+1), fmt.Sprint("new ", made+2), fmt.Sprint("new ", made+3)}
		},
	} {
		m := &moving{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), meanwhile: func(int) []string { return nil }}
		for i := range 12 {
			m.update(fmt.Sprint(i))
			m.now = m.now.Add(time.Hour)
		}
		m.meanwhile = func(page int) []string {
			if page > 200 {
				t.Fatalf("%s: the list does not end", name)
			}
			return meanwhile(page)
		}
		found, err := Listed(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			if !slices.ContainsFunc(found, func(s turnstone.Info) bool { return s.ID == fmt.Sprint(i) }) {
				t.Errorf("%s: %d is missing", name, i)
			}
		}
	}
}

// Ids keep names apart, and give them back. Shortened ones have a length that a store takes, and are nobody else's. The
// modules for Python and JavaScript have the same ids in their tests.
func TestKT1_IdsOfNames(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range [][]string{{"a"}, {"a", "b"}, {"a/b"}, {"a%2Fb"}, {"a%", "2Fb"}, {"", ""}, {""}} {
		id := Join("root", names...)
		if seen[id] {
			t.Errorf("%.20q: %s is taken", names, id)
		}
		if seen[id] = true; !slices.Equal(Names(id), names) {
			t.Errorf("%q, want %q", Names(id), names)
		}
	}
	long := "r/" + strings.Repeat("é", 300)
	short := Short(long, turnstone.MaxSessionID)
	if !strings.HasSuffix(short, "~a2acea681c8e86884d62ce42c970c71ee74bc3a0177c6466fb73dec691b28762") || !strings.HasPrefix(short, "r/éé") {
		t.Error(short)
	}
	for _, text := range []string{long, long + "b", short, "a", ""} {
		id := Short(text, turnstone.MaxSessionID)
		if len(id) > turnstone.MaxSessionID || !utf8.ValidString(id) || seen["short "+id] {
			t.Errorf("%d bytes: %s", len(id), id)
		}
		seen["short "+id] = true
	}
}
