package main

import "fmt"

// past measures reads of a long session as it was one commit ago. Every commit
// adds a small node and a small checkpoint part that has changed.
func past(r *run) error {
	n := r.Scale.Commits
	const id = "past"
	part := func(i int) []byte {
		return fmt.Appendf(nil, `{"step":%d,"plan":"look at the reservation, then ask the user","open":[%d,%d]}`, i, i*7919, i*104729)
	}
	node := func(i int) []byte { return fmt.Appendf(nil, `{"role":"assistant","step":%d}`, i) }
	fillStore := func(st Store) error {
		for i := range n {
			t := Turn{Nodes: []Node{{Kind: "assistant", Payload: node(i)}}, Part: part(i)}
			if err := st.Commit(id, i, &t); err != nil {
				return err
			}
		}
		return nil
	}
	st, err := r.filled("past", fillStore)
	if err != nil {
		return err
	}
	defer st.Close()
	if r.out["last 10"], err = r.median(r.Scale.Repeats, func() error {
		p, err := st.(Historian).LastAt(id, n-1, 10)
		if err == nil && (len(p.Payloads) != 10 || string(p.Payloads[9]) != string(node(n-2))) {
			err = fmt.Errorf("%d nodes, not the last ones of commit %d", len(p.Payloads), n-1)
		}
		return err
	}); err != nil {
		return err
	}
	r.out["checkpoint"], err = r.median(r.Scale.Repeats, func() error {
		got, err := st.(PartReader).PartAt(id, n-1)
		if err == nil && string(got) != string(part(n-2)) {
			err = fmt.Errorf("%q is not the part of commit %d", got, n-1)
		}
		return err
	})
	return err
}
