package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
)

// A timed engine knows how long its own vacuum took: the rewriting of its files,
// which Turnstone can't make faster.
type timed struct {
	engine.Engine
	took time.Duration
}

func (t *timed) Vacuum(ctx context.Context) error {
	start := time.Now()
	err := t.Engine.Vacuum(ctx)
	t.took += time.Since(start)
	return err
}

// eraseOne measures a vacuum when one of many sessions has changed, and erasing
// one of them; the engine's own vacuum apart.
func eraseOne(r *run) error {
	n := r.Scale.Many
	id := func(i int) string { return fmt.Sprintf("kept-%06d", i) }
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	e, err := openEngine(engineOf(r.contestant), dir, true)
	if err != nil {
		return err
	}
	counted := &timed{Engine: e}
	st, err := newOurs(counted)
	if err != nil {
		return err
	}
	defer st.Close()
	in := r.input(10)
	turn := func(i, j int) *Turn { return withBlobs(in, i, j) }
	if err := fill(n, func(i int) error { return st.Commit(id(i), 0, turn(i, 0)) }); err != nil {
		return err
	}
	if err := st.Compact(); err != nil {
		return err
	}
	if err := r.apart("vacuum", counted, func(i int) error {
		report, err := st.store.Vacuum(ctx, gc.VacuumOptions{})
		if err == nil && len(report.Unfinished) > 0 {
			err = fmt.Errorf("sessions %v are unfinished", report.Unfinished)
		}
		return err
	}, func(i int) error { return st.Commit(id(i), 1, turn(i, 1)) }); err != nil {
		return err
	}
	return r.apart("erase", counted, func(i int) error {
		_, err := st.store.Erase(ctx, id(i), turnstone.KeepChildren, turnstone.EraseOptions{})
		return err
	}, func(i int) error { return st.Commit(id(i), 2, turn(i, 2)) })
}

// apart measures f, each time after change, without and with what the engine's
// vacuum takes.
func (r *run) apart(name string, counted *timed, f, change func(i int) error) error {
	var own, engines []time.Duration
	for i := range min(r.Scale.Repeats, 5) {
		if err := change(i); err != nil {
			return err
		}
		counted.took = 0
		start := time.Now()
		if err := f(i); err != nil {
			return err
		}
		own = append(own, time.Since(start)-counted.took)
		engines = append(engines, counted.took)
	}
	r.out[name], r.out[name+", engine"] = quantile(own, 0.5), quantile(engines, 0.5)
	return nil
}

// withBlobs returns a turn of a session that has what a collector has to look at: a
// system prompt that all sessions share, a large payload of its own, and a
// checkpoint part.
func withBlobs(in *Input, session, turn int) *Turn {
	text := func(seed, n int) string {
		at := seed * 7919 % (len(in.text) - n)
		return string(bytes.ToValidUTF8(in.text[at:at+n], nil))
	}
	payload := func(text string) []byte {
		return compactJSON(map[string]any{"session": session, "turn": turn, "content": text})
	}
	system := compactJSON(map[string]string{"role": "system", "content": text(1, 8000)})
	return &Turn{
		Nodes: []Node{{Kind: "system", Payload: system}, {Kind: "user", Payload: payload("Go on.")}, {Kind: "tool", Payload: payload(text(session*10+turn, 6000))}},
		Part:  payload(text(session+turn, 300)),
	}
}
