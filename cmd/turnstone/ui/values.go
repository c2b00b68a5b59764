package ui

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// maxShown is how many bytes of a value are shown.
const maxShown = 1 << 20

// shownValue returns a value as it is shown: JSON with indents, text as it is, or else the beginning in hex.
func shownValue(value []byte) template.HTML {
	if len(value) > maxShown {
		return page.Code(fmt.Sprintf("(%d bytes, too many to be shown)", len(value)), "")
	}
	if text, ok := indented(value); ok {
		return page.Code(text, "json")
	}
	if utf8.Valid(value) {
		return page.Code(string(value), "")
	}
	return page.Code(hex.Dump(value[:min(len(value), 4096)]), "")
}

// indented returns JSON with indents, if the value is JSON.
func indented(value []byte) (string, bool) {
	var out bytes.Buffer
	if len(value) == 0 || json.Indent(&out, value, "", "  ") != nil {
		return "", false
	}
	return out.String(), true
}

// A recordRow is a record that is shown.
type recordRow struct {
	turnstone.Record
	Of   string // what it belongs to: a queue, a lease, a draft or an effect, or "" for another record
	HTML template.HTML
}

// rooms are what the packages beside the store keep in records, by how their keys begin.
var rooms = [][2]string{{"lease/", "lease"}, {"queue/", "queue"}, {"draft/", "draft"}, {"effect/", "effect"}}

// records shows the records of a session, or those of all sessions.
func (v *visit) records() error {
	q := turnstone.RecordQuery{Prefix: v.q.Get("prefix"), After: v.q.Get("after"), Limit: 100}
	body := struct {
		*subject // without a session, if they are of all
		Prefix   string
		Rows     []recordRow
		Next     string
	}{subject: &subject{}, Prefix: q.Prefix}
	title := "Records"
	var records turnstone.RecordPage
	var err error
	if v.q.Get("id") == "" {
		records, err = v.db.Records(v.r.Context(), q)
	} else {
		if body.subject, err = v.subject(); err != nil {
			return err
		}
		title += " of " + body.Row.Called()
		records, err = body.Persistence.Records(v.r.Context(), q)
	}
	if err != nil {
		return err
	}
	for _, r := range records.Records {
		row := recordRow{Record: r, HTML: shownValue(r.Value)}
		for _, room := range rooms {
			if strings.HasPrefix(r.Key, room[0]) {
				row.Of = room[1]
			}
		}
		body.Rows = append(body.Rows, row)
	}
	if records.Next != "" {
		query := v.r.URL.Query()
		query.Set("after", records.Next)
		body.Next = v.url("records", query)
	}
	v.render(200, "records", view{Title: title, Body: &body})
	return nil
}

// attachment sends an attachment. A browser shows images that can't have scripts, and saves everything else.
func (v *visit) attachment() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	id, err := turnstone.ParseBlobID(v.q.Get("attachment"))
	if err != nil {
		return err
	}
	a, err := s.Attachment(v.r.Context(), id)
	if err != nil {
		return err
	}
	h := v.w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	media, _, err := mime.ParseMediaType(a.MediaType)
	if err == nil && page.IsImage(media) {
		h.Set("Content-Type", media)
	} else {
		h.Set("Content-Type", "application/octet-stream")
		name := a.Name[strings.LastIndexAny(a.Name, `/\`)+1:]
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": cleanName(name)}))
	}
	if _, err := s.ReadAttachment(v.r.Context(), v.w, id); err != nil {
		panic(http.ErrAbortHandler) // Its beginning is sent: the browser notices that the rest is missing.
	}
	return nil
}

// cleanName returns the name of a file without what is no character of a name.
func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || strings.ContainsRune(`"<>:|?*`, r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, name)
	if strings.Trim(name, ". ") == "" {
		return "attachment"
	}
	return name
}
