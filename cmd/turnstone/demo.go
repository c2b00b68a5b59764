package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

func (a *app) demo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show what a store does, in a new store",
		Long: "Run a scripted agent on a new embedded store: turns with tools, a lost compare-and-swap, a fork,\n" +
			"a rewind, a process killed in the middle of its commits, a tombstone, a verification.\n" +
			"The store is in a new temporary directory. If --store is given, that store is used and must be empty.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url := a.url
			if !cmd.Flags().Changed("store") {
				dir, err := os.MkdirTemp("", "turnstone-demo-")
				if err != nil {
					return err
				}
				url = filepath.Join(dir, "store")
			}
			if a.keyFile != "" {
				return usageError{fmt.Errorf("the demo makes a store that is not encrypted: run it without --keys and %s", keysVariable)}
			}
			d := &demonstration{app: &app{url: url}, p: printer{w: cmd.OutOrStdout()}}
			if err := d.fresh(cmd.Context()); err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
}

// A demonstration runs the steps of the demo on one store and says what it does.
type demonstration struct {
	app  *app
	p    printer
	step int
}

// fresh checks that the store lasts and is empty.
func (d *demonstration) fresh(ctx context.Context) error {
	if dir, ok := directory(d.app.url); ok {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("%s is not empty: the demo wants a fresh store", dir)
		}
		return nil
	}
	if !open.Server(d.app.url) {
		return usageError{fmt.Errorf("the demo wants a store that lasts, not %s: it kills a process and opens it again", d.app.url)}
	}
	return d.freshServer(ctx)
}

// freshServer checks that a store on a server has no session.
func (d *demonstration) freshServer(ctx context.Context) error {
	return d.app.with(ctx, false, func(st *turnstone.Store) error {
		page, err := st.List(ctx, turnstone.ListOptions{Limit: 1})
		if err == nil && len(page.Sessions) > 0 {
			err = fmt.Errorf("%s is not empty: the demo wants a fresh store, for example another schema=NAME", d.app.shown())
		}
		return err
	})
}

// say prints the next step with its number.
func (d *demonstration) say(format string, args ...any) {
	d.step++
	d.p.printf("%2d  %s\n", d.step, fmt.Sprintf(format, args...))
}

// also prints another line of the same step.
func (d *demonstration) also(format string, args ...any) {
	d.p.printf("    %s\n", fmt.Sprintf(format, args...))
}

func (d *demonstration) run(ctx context.Context) error {
	d.p.printf("turnstone demo: a scripted agent plans a trip, on a fresh store at %s\n\n", d.app.shown())
	for _, part := range []func(context.Context) error{d.talk, d.crash, d.tidy} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	self := commandName()
	d.p.printf("\nThe store stays where it is. What is left to explore:\n")
	for _, c := range []string{"sessions", "show trip", "show trip --full", "show trip/train", "export trip", "verify", "stats", "gc", "vacuum", "ui"} {
		d.p.printf("  %s --store %s %s\n", self, d.app.shown(), c)
	}
	return d.p.err
}

// commandName returns how to run this command again.
func commandName() string {
	exe, err := os.Executable()
	switch {
	case err != nil:
		return "turnstone"
	case strings.Contains(exe, string(filepath.Separator)+"go-build"):
		return "go run ./cmd/turnstone"
	}
	return exe
}

// payload returns a message as JSON.
func payload(role, text string, extra map[string]any) []byte {
	m := map[string]any{"role": role, "content": text}
	for k, v := range extra {
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and maps
	}
	return b
}

// A scripted turn has the question of the user, the call of a tool, its result, and the
// answer.
type scripted struct{ ask, tool, args, result, answer string }

var script = []scripted{
	{"I want to go from Basel to Kyoto in April.", "search_flights", `{"from":"BSL","to":"KIX"}`, `{"flights":[{"id":"LX160","price":812}]}`, "There is a flight on LX160 for 812 francs."},
	{"And a place to stay?", "search_hotels", `{"city":"Kyoto","nights":6}`, `{"hotels":[{"name":"Kamo River Inn","price":95}]}`, "The Kamo River Inn has rooms at 95 francs a night."},
	{"How is the weather then?", "climate", `{"city":"Kyoto","month":4}`, `{"high":20,"low":9,"rain_days":10}`, "Mild: 9 to 20 degrees, with ten days of rain. The cherries bloom early in the month."},
}

// turn returns the commit of the scripted turn with index i.
func turn(expected head.Revision, i int, s scripted) turnstone.Commit {
	call := fmt.Sprintf("call_%d", i+1)
	return turnstone.Commit{
		Expected: expected,
		Turn:     fmt.Sprintf("turn-%d", i+1),
		Nodes: []turnstone.NewNode{
			{Kind: "user", Key: fmt.Sprintf("msg_%d", i+1), Payload: payload("user", s.ask, nil)},
			{Kind: "assistant", Payload: payload("assistant", "", map[string]any{"tool_calls": []any{map[string]any{
				"id": call, "type": "function", "function": map[string]any{"name": s.tool, "arguments": s.args},
			}}})},
			{Kind: "tool", Payload: payload("tool", s.result, map[string]any{"tool_call_id": call})},
			{Kind: "assistant", Payload: payload("assistant", s.answer, nil)},
		},
		Checkpoint: map[string][]byte{"plan": fmt.Appendf(nil, `{"step":%d,"next":%q}`, i+1, s.tool)},
		Records:    []turnstone.RecordChange{{Key: "stage", Value: fmt.Appendf(nil, `{"step":%d}`, i+1)}},
		Usage:      []head.Usage{{Model: "scripted-1", Input: uint64(200 + 150*i), Output: 60, CachedInput: uint64(150 * i)}},
	}
}

// talk runs the scripted turns in the session "trip", then a lost race, a repeated turn,
// a fork and a rewind.
func (d *demonstration) talk(ctx context.Context) error {
	return d.app.with(ctx, false, func(st *turnstone.Store) error {
		s, _, err := st.Create(ctx, turnstone.Request{ID: "trip", Metadata: head.Metadata{Name: "A trip to Kyoto", Model: "scripted-1", Labels: map[string]string{"demo": "yes"}}})
		if err != nil {
			return err
		}
		d.say("Created session %q. It is at revision 0.", s.ID())
		results, err := d.turns(ctx, s)
		if err != nil {
			return err
		}
		last, err := d.race(ctx, s)
		if err != nil {
			return err
		}
		if err := d.repeat(ctx, s, results[1]); err != nil {
			return err
		}
		if err := d.fork(ctx, st, results[0].Leaf); err != nil {
			return err
		}
		return d.rewind(ctx, s, last, results[1].Leaf)
	})
}

// turns commits the script.
func (d *demonstration) turns(ctx context.Context, s *turnstone.Session) ([]turnstone.Result, error) {
	var results []turnstone.Result
	for i, t := range script {
		r, err := s.Commit(ctx, turn(head.Revision(i), i, t))
		if err != nil {
			return nil, err
		}
		results = append(results, r)
		d.say("Committed turn %d: question, tool call, result, answer and the record \"stage\" in one step. Revision %d, leaf %.12s.", i+1, r.Revision, r.Leaf)
	}
	return results, nil
}

// race commits on a stale revision, which is refused, and then on the current one. It
// returns the revision of that commit.
func (d *demonstration) race(ctx context.Context, s *turnstone.Session) (head.Revision, error) {
	late := turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "user", Payload: payload("user", "Is there a museum?", nil)}}}
	var conflict *turnstone.ConflictError
	if _, err := s.Commit(ctx, late); !errors.As(err, &conflict) {
		return 0, fmt.Errorf("a commit on a stale revision was not refused: %v", err)
	}
	d.say("A second writer, who had loaded revision %d, lost the compare-and-swap; nothing of its turn was stored:", conflict.Expected)
	d.also("%v", conflict)
	state, err := s.Load(ctx, turnstone.Scope{After: conflict.Expected})
	if err != nil {
		return 0, err
	}
	late.Expected = conflict.Revision
	r, err := s.Commit(ctx, late)
	if err != nil {
		return 0, err
	}
	d.say("It read the %d nodes that it had missed, and committed on revision %d: now at %d.", len(state.Nodes), conflict.Revision, r.Revision)
	return r.Revision, nil
}

// repeat commits turn 2 again. The result must be the first one.
func (d *demonstration) repeat(ctx context.Context, s *turnstone.Session, first turnstone.Result) error {
	again, err := s.Commit(ctx, turn(1, 1, script[1]))
	if err != nil {
		return err
	}
	if !again.Replayed || again.Commit != first.Commit {
		return errors.New("a turn was committed twice")
	}
	d.say("Turn 2 was sent again, as after a lost reply: its turn id gave the first result back (revision %d), nothing was added.", again.Revision)
	return nil
}

// fork forks the session at a node and commits a turn to the fork.
func (d *demonstration) fork(ctx context.Context, st *turnstone.Store, at graph.ID) error {
	f, _, err := st.Create(ctx, turnstone.Request{ID: "trip/train", Parent: "trip", ForkNode: at, Metadata: head.Metadata{Name: "The same, by train"}})
	if err != nil {
		return err
	}
	if _, err := f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{
		{Kind: "user", Payload: payload("user", "What if I went by train instead?", nil)},
		{Kind: "assistant", Payload: payload("assistant", "Via Moscow and Vladivostok, about two weeks.", nil)},
	}}); err != nil {
		return err
	}
	forked, err := f.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	d.say("Forked %q after turn 1: it shows %d nodes, of which it stores 2. The others stay where they are.", f.ID(), len(forked.Nodes))
	return nil
}

// rewind moves the leaf of a session, which is at revision last, back to a node and
// goes on from there.
func (d *demonstration) rewind(ctx context.Context, s *turnstone.Session, last head.Revision, leaf graph.ID) error {
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: last, Leaf: turnstone.RefTo(leaf)}); err != nil {
		return err
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: last + 1, Nodes: []turnstone.NewNode{
		{Kind: "user", Key: "msg_card", Payload: payload("user", "Book it. My card is 4000 0000 0000 0002.", nil)},
		{Kind: "assistant", Payload: payload("assistant", "Booked.", nil)},
	}}); err != nil {
		return err
	}
	path, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	full, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	d.say("Rewound to the end of turn 2 and went on: the active path has %d nodes, the full graph %d.", len(path.Nodes), len(full.Nodes))
	return nil
}

const (
	childName = "demo-child"
	// The child is killed after crashAfter commits were acknowledged. It is in the
	// middle of the next commit then.
	crashAfter = 40
)

// demoChild commits turns as fast as it can until it is killed. It writes a line for
// each commit that was acknowledged.
func (a *app) demoChild() *cobra.Command {
	return &cobra.Command{
		Use: childName, Hidden: true, Args: cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			s, _, err := st.Create(cmd.Context(), turnstone.Request{ID: "crash", Metadata: head.Metadata{Name: "Killed in the middle of a commit"}})
			if err != nil {
				return err
			}
			for i := range 1_000_000 {
				n := turnstone.NewNode{Kind: "event", Payload: payload("assistant", fmt.Sprintf("event %d", i), nil)}
				r, err := s.Commit(cmd.Context(), turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{n, n, n}})
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), r.Revision, r.Commit); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// crash has a child process commit, kills it, and checks that its session has all
// commits that were acknowledged.
func (d *demonstration) crash(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	revision, commit, err := d.killedChild(ctx)
	if err != nil {
		return err
	}
	return d.app.with(ctx, true, func(st *turnstone.Store) error {
		d.say("Another process committed without a pause and was killed (SIGKILL) after revision %d was acknowledged.", revision)
		s, err := st.Session(ctx, "crash")
		if err != nil {
			return err
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			return err
		}
		at, err := s.Load(ctx, turnstone.Scope{At: revision, Last: 1})
		if err != nil {
			return err
		}
		if state.Revision < revision || len(state.Nodes) != 3*int(state.Revision) || at.Commit.String() != commit {
			return fmt.Errorf("after the crash the session is at revision %d with %d nodes; %d was acknowledged", state.Revision, len(state.Nodes), revision)
		}
		d.say("Reopened: it is at revision %d with %d nodes, three a commit. What was acknowledged is there, nothing is there by half.", state.Revision, len(state.Nodes))
		return nil
	})
}

// killedChild runs demoChild in another process and kills it after crashAfter commits.
// It returns the revision and the id of the last commit that was acknowledged.
func (d *demonstration) killedChild(ctx context.Context) (revision head.Revision, commit string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, "", err
	}
	child := exec.CommandContext(ctx, exe, childName)
	child.Env = append(os.Environ(), storeVariable+"="+d.app.url) // unlike arguments, the environment is private
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return 0, "", err
	}
	if err := child.Start(); err != nil {
		return 0, "", err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, err := fmt.Sscan(lines.Text(), &revision, &commit); err != nil {
			break // the last line may be cut
		}
		if revision == crashAfter {
			if err := child.Process.Kill(); err != nil {
				return 0, "", err
			}
		}
	}
	if err := child.Wait(); err == nil || revision < crashAfter {
		return 0, "", fmt.Errorf("the child process ended by itself at revision %d: %v", revision, err)
	}
	return revision, commit, nil
}

// tidy tombstones a node, erases it and a session, and verifies the store.
func (d *demonstration) tidy(ctx context.Context) error {
	return d.app.with(ctx, true, func(st *turnstone.Store) error {
		s, err := st.Session(ctx, "trip")
		if err != nil {
			return err
		}
		card, err := s.NodeByKey(ctx, "msg_card")
		if err != nil {
			return err
		}
		if err := d.tombstone(ctx, s, card.ID); err != nil {
			return err
		}
		if err := d.erase(ctx, s, card.ID); err != nil {
			return err
		}
		r, err := st.Erase(ctx, "crash", turnstone.KeepChildren, turnstone.EraseOptions{})
		if err != nil {
			return err
		}
		d.say("Erased the session of the other process: %d records, %d nodes. Collection and vacuum ran beside what was open.", r.Vacuum.Records, r.Vacuum.Nodes)
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil {
			return err
		}
		if !v.OK() {
			return v.Problems[0]
		}
		d.say("Verified %d records of %d sessions: every hash, link, checksum and reference is right.", v.Records, v.Sessions)
		return nil
	})
}

// tombstone hides a node and checks that it can't be read any more.
func (d *demonstration) tombstone(ctx context.Context, s *turnstone.Session, id graph.ID) error {
	if err := s.Tombstone(ctx, id); err != nil {
		return err
	}
	if _, err := s.Node(ctx, id); !errors.Is(err, turnstone.ErrNodeNotFound) {
		return fmt.Errorf("a tombstoned node is still read: %v", err)
	}
	path, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	d.say("Tombstoned the message with the card number: no read shows it, the answer is linked past it, the path has %d nodes.", len(path.Nodes))
	return nil
}

// erase removes the content of a node from the store's files.
func (d *demonstration) erase(ctx context.Context, s *turnstone.Session, id graph.ID) error {
	r, err := s.Erase(ctx, turnstone.EraseOptions{}, id)
	if err != nil {
		return err
	}
	if r.Vacuum.Nodes != 1 || len(r.HeldBy) > 0 {
		return fmt.Errorf("the node was not erased: %+v", r)
	}
	gone := "in no file any more"
	if open.Server(d.app.url) {
		gone = "in no row any more (the server's files, log and backups keep them for a while: docs/engines.md)"
	}
	d.say("Erased it: its content and salt are %s, no other session holds it; its hash stays, and every hash above it verifies.", gone)
	return nil
}
