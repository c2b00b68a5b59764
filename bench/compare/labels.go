package main

import "fmt"

// labelled measures the first page of the sessions that have a label. Fifty
// sessions have it, a page, and so it takes finding all of them among the many.
func labelled(r *run) error {
	n := r.Scale.Many
	labels := max(n/50, 1)
	label := func(i int) string { return fmt.Sprint("project-", i%labels) }
	st, err := r.filled("labelled", func(st Store) error {
		return fill(n, func(i int) error {
			t := Turn{Nodes: []Node{{Kind: "user", Payload: fmt.Appendf(nil, `{"session":%d}`, i)}}, Label: label(i)}
			return st.Commit(fmt.Sprintf("labelled-%06d", i), 0, &t)
		})
	})
	if err != nil {
		return err
	}
	defer st.Close()
	i := 0
	r.out["first page"], err = r.median(r.Scale.Repeats, func() error {
		i++
		ids, err := st.(LabelLister).ListLabel(label(i), 50)
		if err == nil && len(ids) != min(50, n) {
			err = fmt.Errorf("%d sessions instead of 50", len(ids))
		}
		return err
	})
	return err
}
