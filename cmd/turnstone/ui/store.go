package ui

import (
	"encoding/json"
	"fmt"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// store shows what the store holds, and what it takes.
func (v *visit) store() error {
	stats, err := v.db.Stats(v.r.Context())
	if err != nil {
		return err
	}
	v.render(200, "store", view{Title: "Store", Body: &struct {
		*turnstone.Stats
		Kinds []string
	}{stats, sorted(stats.ByKind)}})
	return nil
}

// maintenance is what the page of the store offers.
var maintenance = map[string]func(*visit) (any, error){
	"verify":  (*visit).verify,
	"collect": func(v *visit) (any, error) { return v.db.GC(v.r.Context(), gc.Options{}) },
	"vacuum":  func(v *visit) (any, error) { return v.db.Vacuum(v.r.Context(), gc.VacuumOptions{}) },
}

// irrevocable says what can't be taken back.
var irrevocable = map[string]string{
	"collect": "What nothing refers to is deleted.",
	"vacuum":  "What was hidden or deleted is removed from the files of the store. Nothing brings it back.",
}

// verify verifies the store, and names the problems.
func (v *visit) verify() (any, error) {
	found, err := v.db.Verify(v.r.Context(), turnstone.VerifyOptions{})
	if err != nil {
		return nil, err
	}
	report := struct {
		*turnstone.Verification
		Problems []string `json:"problems"`
	}{found, []string{}}
	for _, p := range found.Problems {
		report.Problems = append(report.Problems, p.Error())
	}
	return report, nil
}

// maintain verifies, collects or vacuums, and shows the report.
func (v *visit) maintain() error {
	v.q = v.r.PostForm
	f := maintenance[v.q.Get("do")]
	switch {
	case f == nil:
		return fmt.Errorf("%w: there is no maintenance %q", wire.ErrRequest, v.q.Get("do"))
	case v.o.ReadOnly:
		return errReadOnly
	case v.ask("maintain", irrevocable[v.q.Get("do")], v.URL("store")):
		return nil
	}
	report, err := f(v)
	if err != nil {
		return err
	}
	if v.o.Forget != nil && v.q.Get("do") != "verify" {
		if err := v.o.Forget(v.r.Context(), v.Space); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	v.render(200, "report", view{Title: "Report", Body: map[string]any{"Do": v.q.Get("do"), "HTML": page.Code(string(text), "json")}})
	return nil
}

// help says what the keys do.
func (v *visit) help() error {
	v.render(200, "help", view{Title: "Keys"})
	return nil
}
