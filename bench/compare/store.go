package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
)

// A Store is what is compared. Its methods are called concurrently, those of
// one session one after the other.
type Store interface {
	// Commit appends t to a session that has had so many commits, and which it
	// creates with the first one; on return it is as durable as the contestant says.
	Commit(session string, commits int, t *Turn) error
	Close() error
}

// A Reader gives back what was committed.
type Reader interface {
	// Load returns the payloads of the active path, decoded from JSON where the
	// store does so itself, and verified where it can.
	Load(session string) (Path, error)
	// Last returns the last n of them.
	Last(session string, n int) (Path, error)
	// One returns the payload of one node, named by what Path says of it.
	One(session, node string) ([]byte, error)
	// Fork makes a session that goes on from the leaf of another one.
	Fork(session, fork string) error
}

// A Path is a history, or the end of one.
type Path struct {
	Payloads [][]byte
	IDs      []string // of the nodes
}

// last returns the last n nodes of p.
func (p Path) last(n int) Path {
	from := max(0, len(p.IDs)-n)
	return Path{p.Payloads[from:], p.IDs[from:]}
}

// one returns the payload of a node of p, which was loaded with err.
func (p Path) one(node string, err error) ([]byte, error) {
	if i := slices.Index(p.IDs, node); err == nil && i >= 0 {
		return p.Payloads[i], nil
	}
	return nil, cmp.Or(err, os.ErrNotExist)
}

// A KeyReader finds a node by the key that it was committed with.
type KeyReader interface {
	ByKey(session, key string) ([]byte, error)
}

// A PartReader returns the checkpoint part as it was after so many commits.
type PartReader interface {
	PartAt(session string, commits int) ([]byte, error)
}

// A Historian returns the last n nodes of a session as it was after so many
// commits.
type Historian interface {
	LastAt(session string, commits, n int) (Path, error)
}

// A LabelLister lists the sessions that have a label, the last updated ones first.
type LabelLister interface {
	ListLabel(label string, limit int) (ids []string, err error)
}

// A Lister lists sessions, the last updated ones first, in pages.
type Lister interface {
	List(after string, limit int) (ids []string, next string, err error)
}

// A Reclaimer deletes sessions and gives back the space.
type Reclaimer interface {
	Delete(session string) error
	Reclaim() error
}

// A Compacter makes the files as small as they get.
type Compacter interface{ Compact() error }

// A Contestant is a way to store sessions.
type Contestant struct {
	Name string
	// Durable says what an acknowledged commit survives.
	Durable string
	// Open opens a store in dir, or creates it. With bulk nothing need be durable
	// before Close: it prepares what is measured later.
	Open func(dir string, bulk bool) (Store, error)
	// Limit marks a contestant that nobody would pick as a store: it shows what a
	// store could reach at most. Only tests read this field.
	Limit bool
	// Only, if set, is the one workload that the contestant is made for.
	Only string
	// Twin marks a contestant that differs from the one before only in durability.
	// Where nothing is committed durably, the one before stands for both.
	Twin bool
}

const (
	powerLoss    = "power loss"
	processCrash = "process crash"
	nothing      = "nothing"
)

// contestants in the order of the tables.
var contestants = []Contestant{
	{Name: "turnstone pebble", Durable: powerLoss, Open: openTurnstone("pebble")},
	{Name: "turnstone pebble process", Durable: processCrash, Twin: true, Open: openTurnstone("pebble-process")},
	{Name: "turnstone badger", Durable: powerLoss, Open: openTurnstone("badger")},
	{Name: "turnstone memory", Durable: nothing, Open: openTurnstone("memory")},
	{Name: "sqlite full", Durable: powerLoss, Open: openSQLite("FULL")},
	{Name: "sqlite normal", Durable: processCrash, Twin: true, Open: openSQLite("NORMAL")},
	{Name: "adk sqlite", Durable: powerLoss, Open: openADK},
	{Name: "json lines", Durable: powerLoss, Open: openJSONLines},
	{Name: "langgraph sqlite full", Durable: powerLoss, Only: "growing-part", Open: openLangGraph("FULL")},
	{Name: "langgraph sqlite normal", Durable: processCrash, Only: "growing-part", Open: openLangGraph("NORMAL")},
	{Name: "working log", Durable: powerLoss, Limit: true, Open: openWorkingLog},
}

func contestant(name string) (*Contestant, error) {
	for i := range contestants {
		if contestants[i].Name == name {
			return &contestants[i], nil
		}
	}
	return nil, fmt.Errorf("no contestant %q", name)
}

// errLeftOut: the contestant has no such operation.
var errLeftOut = errors.New("left out")
