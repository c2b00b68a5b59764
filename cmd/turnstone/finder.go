package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/ui"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/search"
)

const (
	indexTime  = 10 * time.Second // how long a search of the pages waits for the index, which is made on
	findTime   = 20 * time.Second // how long it may take then
	usageFresh = 30 * time.Second // how long a sum of usage is shown
	finding    = 2                // searches and sums at once, of all namespaces; others wait
)

// A finder searches a store for its pages, and sums up its usage. They are not the calls of one visitor, so it bounds
// them.
type finder struct {
	st     *turnstone.Store
	open   func() (*search.Index, error) // nil if the store has no index
	places chan struct{}
	ended  context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	index   *search.Index
	syncing chan struct{} // closed when the Sync that goes on has ended; nil without one
	err     error         // of the last Sync
	sums    *ui.Usage
	summed  time.Time
}

func newFinder(ctx context.Context, st *turnstone.Store, open func() (*search.Index, error), places chan struct{}) *finder {
	f := &finder{st: st, open: open, places: places}
	f.ended, f.end = context.WithCancel(ctx)
	return f
}

// Close ends what goes on, and closes the index and the store.
func (f *finder) Close() error {
	f.end()
	f.mu.Lock()
	syncing, x := f.syncing, f.index
	f.mu.Unlock()
	if syncing != nil {
		<-syncing
	}
	if x == nil {
		return f.st.Close()
	}
	return errors.Join(x.Close(), f.st.Close())
}

// enter waits for a place.
func (f *finder) enter(ctx context.Context) (leave func(), err error) {
	select {
	case f.places <- struct{}{}:
		return func() { <-f.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sync brings the index to where the store is now. It waits until ctx ends; the index is made on.
func (f *finder) sync(ctx context.Context) error {
	for again := false; ; again = true {
		f.mu.Lock()
		mine := f.syncing == nil
		if mine {
			if f.index == nil {
				var err error
				if f.index, err = f.open(); err != nil {
					f.mu.Unlock()
					return err
				}
			}
			f.syncing = make(chan struct{})
			go f.run(f.index, f.syncing)
		}
		syncing := f.syncing
		f.mu.Unlock()
		select {
		case <-syncing:
		case <-ctx.Done():
			return ctx.Err()
		}
		if mine || again { // One that had begun before may not have seen what is new.
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.err
		}
	}
}

func (f *finder) run(x *search.Index, done chan struct{}) {
	_, err := x.Sync(f.ended, f.st)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.syncing = err, nil
	close(done)
}

// find searches.
func (f *finder) find(ctx context.Context, text string) ([]search.Result, error) {
	q, err := search.Parse(text, time.Now())
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, indexTime)
	defer cancel()
	if err := f.sync(waiting); err != nil {
		if waiting.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: the index is being made: search again", wire.ErrBusy)
		}
		return nil, err
	}
	leave, err := f.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	found, err := f.index.Find(limited, f.st, q, search.FindOptions{Limit: 100, Branches: true})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: the search has taken %v: add a word to it", wire.ErrBusy, findTime)
	}
	return found, err
}

// usage sums up what all sessions have used, by day and model, at the prices that are built in, and how they grew.
func (f *finder) usage(ctx context.Context) (*ui.Usage, error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	f.mu.Lock()
	sums, fresh := f.sums, time.Since(f.summed) < usageFresh
	f.mu.Unlock()
	if fresh {
		return sums, nil
	}
	table, err := loadPrices(os.Getenv(pricesVariable))
	if err != nil {
		return nil, err
	}
	l := ledger{by: []string{"day", "model"}, prices: table, sums: map[account]*tally{}, unpriced: map[string]bool{}, grown: map[string]*ui.GrowthRow{}}
	if err := l.read(limited, f.st, nil); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: the sum takes longer than %v: `turnstone usage` has the time", wire.ErrBusy, findTime)
		}
		return nil, err
	}
	sums = &ui.Usage{}
	for k, u := range l.sums {
		sums.Rows = append(sums.Rows, ui.UsageRow{Day: k.day, Model: k.model, Input: u.Input, Output: u.Output, Cost: u.Cost})
	}
	for _, day := range slices.Sorted(maps.Keys(l.grown)) {
		sums.Growth = append(sums.Growth, *l.grown[day])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums, f.summed = sums, time.Now()
	return sums, nil
}
