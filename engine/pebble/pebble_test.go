package pebble_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

func TestContract(t *testing.T) {
	enginetest.Run(t, enginetest.Driver{
		Durable:   true,
		Exclusive: true,
		Open:      func(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) },
	})
}
