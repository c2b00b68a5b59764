package open

import (
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// A driver is an engine in a directory.
type driver struct {
	scheme  string // of its URLs
	open    func(dir string, o *Options) (engine.Engine, error)
	remains func(dir string) (Remaining, error)
	trace   func(name string) bool // reports whether its stores have a file of that name; of the default, others may too
}

// embedded are the engines in directories, the default first. The command and storetest go by this list.
// The clients in Python and TypeScript, the golden stores and the benchmarks do not: who adds an engine adds it there.
var embedded = []driver{
	{"pebble", func(dir string, o *Options) (engine.Engine, error) {
		return opened(pebble.Open(dir, &pebble.Options{MinFreeBytes: o.MinFreeBytes, Memory: o.Memory, ReadOnly: o.ReadOnly}))
	}, func(dir string) (Remaining, error) { return remaining(pebble.OpenRemains(dir)) }, pebble.Trace},
	{"badger", func(dir string, o *Options) (engine.Engine, error) {
		return opened(badger.Open(dir, &badger.Options{MinFreeBytes: o.MinFreeBytes, Memory: o.Memory, ReadOnly: o.ReadOnly}))
	}, func(dir string) (Remaining, error) { return remaining(badger.OpenRemains(dir)) }, badger.Trace},
}

// opened returns e, and no nil pointer in it.
func opened[E engine.Engine](e E, err error) (engine.Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}

// remaining is opened for what remains of a store.
func remaining[R Remaining](r R, err error) (Remaining, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// named returns the driver of a scheme.
func named(scheme string) (driver, bool) {
	i := slices.IndexFunc(embedded, func(d driver) bool { return d.scheme == scheme })
	if i < 0 {
		return driver{}, false
	}
	return embedded[i], true
}

// Schemes are those of the URLs of engines in directories, the default first.
func Schemes() (schemes []string) {
	for _, d := range embedded {
		schemes = append(schemes, d.scheme)
	}
	return schemes
}
