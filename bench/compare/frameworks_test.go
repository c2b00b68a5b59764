package main

import (
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// openPebble opens the store in a directory for the benchmarks of adapters, until end is called. It is durable
// against loss of power.
func openPebble(b *testing.B, dir string) (store turnstone.Factory, end func()) {
	b.Helper()
	e, err := pebble.Open(dir, nil)
	if err != nil {
		b.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	return st.Factory(), func() {
		if err := st.Close(); err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// reportDisk reports what the files in a directory take.
func reportDisk(b *testing.B, dir string) {
	b.Helper()
	n, err := open.Allocated(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n), "bytes")
}
