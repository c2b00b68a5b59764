package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/faulty"
)

var updateRetries = flag.Bool("retries", false, "write ../server/retries.jsonl")

const retriesFile = "../server/retries.jsonl"

// A retry says what comes of a call that meets faults.
type retry struct {
	Call    string   `json:"call"`
	Faults  []string `json:"faults"`
	Outcome string   `json:"outcome"`
}

// The calls of the table.
const (
	withTurn = "commit with a turn id"
	noTurn   = "commit without a turn id"
	records  = "change of records"
	reading  = "read"
)

const (
	made    = "made once"
	unknown = "unknown outcome" // made once, or not at all
)

// table returns all calls with all sequences of one and of two faults.
func table() (rows []retry) {
	var sequences [][]string
	for _, a := range faulty.Faults {
		sequences = append(sequences, []string{a})
	}
	for _, a := range faulty.Faults {
		for _, b := range faulty.Faults {
			sequences = append(sequences, []string{a, b})
		}
	}
	for _, call := range []string{withTurn, noTurn, records, reading} {
		for _, faults := range sequences {
			rows = append(rows, retry{call, faults, outcome(call, faults)})
		}
	}
	return rows
}

// outcome returns what has to come of a call. A change of records alone is known to the process of the server only: if
// that may have made it, no other one is asked to.
func outcome(call string, faults []string) string {
	begun, elsewhere := false, 0
	for _, f := range append(slices.Clone(faults), "") {
		switch f {
		case faulty.Restart:
			elsewhere = 2 // for good
		case faulty.Other:
			if elsewhere < 2 {
				elsewhere = 1 - elsewhere
			}
		case faulty.Refused:
		case "":
			if call == records && begun && elsewhere > 0 {
				return unknown
			}
		default:
			if call == records && begun && elsewhere > 0 {
				return unknown
			}
			begun = true
		}
	}
	return made
}

// What comes of a call that meets faults is what the table says, which the clients in Python and TypeScript keep as well.
func TestSV3_CallsThatMeetFaultsEndAsTheTableSays(t *testing.T) {
	rows := table()
	var file bytes.Buffer
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(line, '\n'))
	}
	if *updateRetries {
		if err := os.WriteFile(retriesFile, file.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(retriesFile); err != nil || !bytes.Equal(kept, file.Bytes()) {
		t.Fatalf("%s is not what this test makes, which it writes with -retries: %v", retriesFile, err)
	}
	path := filepath.Join(t.TempDir(), "s")
	s, err := faulty.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	control := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) },
	}}
	plan := func(faults []string) {
		t.Helper()
		body, _ := json.Marshal(faults)
		answer, err := control.Post("http://faulty"+faulty.PathFaults, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	for i, row := range rows {
		t.Run(fmt.Sprint(row.Call, "/", strings.Join(row.Faults, ",")), func(t *testing.T) {
			cl := connect(t, path)
			defer cl.Close()
			p, _, err := cl.Create(ctx, turnstone.Request{ID: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			plan(row.Faults)
			switch row.Call {
			case withTurn:
				_, err = p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "t"})
			case noTurn:
				_, err = p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision})
			case records:
				_, err = p.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Value: []byte("v"), Expect: turnstone.NoRecord})
			case reading:
				_, err = p.Load(ctx, turnstone.Scope{})
			}
			if got := errors.Is(err, turnstone.ErrOutcomeUnknown); got != (row.Outcome == unknown) || err != nil && !got {
				t.Fatalf("%v, want it %s", err, row.Outcome)
			}
			plan(nil)
			st, err := p.Load(ctx, turnstone.Scope{})
			if want := map[string]int64{withTurn: 1, noTurn: 1}[row.Call]; err != nil || int64(st.Revision) != want {
				t.Errorf("revision %d, %v", st.Revision, err)
			}
			if row.Call == records && row.Outcome == made {
				if r, err := p.Record(ctx, "k"); err != nil || string(r.Value) != "v" {
					t.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
}
