package ui

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
)

// A comparison is what two places have in common, and what only one has.
type comparison struct {
	A, B   *subject
	Common int
	HTML   [3]template.HTML // that node, and what only the first and only the second one has
	Only   [2]int
	Parts  []partDifference
}

// A partDifference is a part of a checkpoint that differs.
type partDifference struct {
	Name string
	HTML template.HTML
}

// diff compares two places: id, at and leaf name the first one, and with, withat and withleaf the second one, which is
// of the same session unless it is named.
func (v *visit) diff() error {
	a, err := v.subject()
	if err != nil {
		return err
	}
	other := *v
	other.q = pairs([]string{"id", v.q.Get("with"), "at", v.q.Get("withat"), "leaf", v.q.Get("withleaf")})
	if other.q.Get("id") == "" {
		other.q.Set("id", a.ID())
	}
	b, err := other.subject()
	if err != nil {
		return err
	}
	c := comparison{A: a, B: b}
	var paths [2][]turnstone.Node
	var parts [2]map[string][]byte
	for i, s := range []*subject{a, b} {
		state, err := s.Load(v.r.Context(), s.scope())
		if err != nil {
			return err
		}
		paths[i] = state.Nodes
		if s.Leaf.IsZero() {
			if parts[i], err = s.Checkpoint(v.r.Context(), s.At); err != nil {
				return err
			}
		}
	}
	first, second := page.Parted(paths[0], paths[1])
	c.Common, c.Only = second, [2]int{len(paths[0]) - first, len(paths[1]) - second}
	for i, nodes := range [][]turnstone.Node{paths[1][max(0, second-1):second], paths[0][first:], paths[1][second:]} {
		of := a
		if i == 2 {
			of = b
		}
		if c.HTML[i], err = v.written(of, nodes[:min(len(nodes), 200)]); err != nil {
			return err
		}
	}
	if a.Leaf.IsZero() && b.Leaf.IsZero() {
		c.Parts = differences(parts[0], parts[1])
	}
	v.render(200, "diff", view{Title: "Differences", Body: &c})
	return nil
}

// differences returns the parts that differ, line by line. JSON is compared with indents.
func differences(a, b map[string][]byte) (out []partDifference) {
	names := sorted(a)
	for _, name := range sorted(b) {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		one, two := a[name], b[name]
		if string(one) == string(two) {
			continue
		}
		var text string
		if len(one)+len(two) > maxShown {
			text = fmt.Sprintf("(%d and %d bytes, too many to be compared)", len(one), len(two))
		} else {
			text = udiff.Unified("first", "second", comparable(one), comparable(two))
		}
		out = append(out, partDifference{name, page.Code(text, "diff")})
	}
	return out
}

// comparable returns a value as lines of text.
func comparable(value []byte) string {
	if text, ok := indented(value); ok {
		return text + "\n"
	}
	if text := strings.ToValidUTF8(string(value), "�"); text != "" {
		return text + "\n"
	}
	return ""
}
