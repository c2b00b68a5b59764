package badger_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/enginetest"
)

func TestContract(t *testing.T) {
	enginetest.Run(t, enginetest.Driver{
		Durable:   true,
		Exclusive: true,
		Open:      func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) },
	})
}
