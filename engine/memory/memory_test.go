package memory_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

func TestContract(t *testing.T) {
	enginetest.Run(t, enginetest.Driver{
		Open: func(string) (engine.Engine, error) { return memory.New(), nil },
	})
}
