package ui

import "github.com/turnstonedb/turnstone"

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

// help says what the keys do.
func (v *visit) help() error {
	v.render(200, "help", view{Title: "Keys"})
	return nil
}
