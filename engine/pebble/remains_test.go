package pebble

import (
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/remains/remainstest"
)

var remaining = &remainstest.Driver{
	Open:    func(dir string) (engine.Engine, error) { return Open(dir, nil) },
	Remains: func(dir string) (remainstest.Remaining, error) { return OpenRemains(dir) },
	Gone:    []string{"MANIFEST-*", "marker.*", "OPTIONS-*", "turnstone.*"},
	Log:     ".log",
	Most:    25, // A table has about 20 blocks, and a footer without which none can be read.
}

// What can be read of tables and logs remains, whatever else is damaged or missing.
func TestRemains(t *testing.T) { remaining.Run(t) }
