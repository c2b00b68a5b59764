package ui

import (
	"fmt"
	"html/template"
	"reflect"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

type usage = head.Usage

// functions are those of the templates.
var functions = template.FuncMap{
	"short": func(id graph.ID) string {
		if id.IsZero() {
			return ""
		}
		return page.Short(id)
	},
	"moment":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"machine":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"size":     func(n any) string { return humanize.Bytes(number(n)) },
	"count":    func(n any) string { return humanize.Comma(int64(number(n))) },
	"previous": func(r head.Revision) head.Revision { return r - 1 },
	"of":       func(v view, h *historyPage, r commitRow) any { return placeOf{h.ID(), v.Space, r.Revision} },
	"dollars":  func(billionths uint64) string { return fmt.Sprintf("%.4f", float64(billionths)/1e9) },
}

// number returns a number that is not negative.
func number(n any) uint64 {
	if v := reflect.ValueOf(n); v.CanUint() {
		return v.Uint()
	}
	return uint64(max(0, reflect.ValueOf(n).Int()))
}

// A placeOf is a revision that a form is about.
type placeOf struct {
	ID, Space string
	Revision  head.Revision
}
