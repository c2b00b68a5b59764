package ui

import (
	"fmt"
	"strings"

	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/search"
)

// A hit is a result of a search that is shown.
type hit struct {
	search.Result
	Parts []hitPart
}

// A hitPart is a part of a passage. It is marked if it was found.
type hitPart struct {
	Text   string
	Marked bool
}

// search shows what a query finds.
func (v *visit) search() error {
	if !v.Searches() {
		return fmt.Errorf("%w: there is no index to search here", wire.ErrRoute)
	}
	body := struct {
		Query string
		Hits  []hit
	}{Query: strings.TrimSpace(v.q.Get("q"))}
	if body.Query != "" {
		found, err := v.o.Search(v.r.Context(), v.Space, body.Query)
		if err != nil {
			return err
		}
		for _, r := range found {
			body.Hits = append(body.Hits, hit{r, partsOf(&r)})
		}
	}
	v.render(200, "search", view{Title: "Search", Body: &body})
	return nil
}

// partsOf cuts a passage where its marks are.
func partsOf(r *search.Result) (out []hitPart) {
	at := 0
	for _, m := range r.Marks {
		out = append(out, hitPart{r.Passage[at:m[0]], false}, hitPart{r.Passage[m[0]:m[1]], true})
		at = m[1]
	}
	return append(out, hitPart{r.Passage[at:], false})
}
