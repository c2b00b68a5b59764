package badger_test

import (
	"testing"

	db "github.com/dgraph-io/badger/v4"

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

// A hosted engine uses the host's database. Close closes the engine first and then the database.
type hosted struct {
	*badger.Engine
	db *db.DB
}

func (h hosted) Close() error {
	if err := h.Engine.Close(); err != nil || h.db.IsClosed() {
		return err
	}
	return h.db.Close()
}

func TestContractInADatabaseOfTheHost(t *testing.T) {
	enginetest.Run(t, enginetest.Driver{
		Durable: true,
		Open: func(dir string) (engine.Engine, error) {
			d, err := db.Open(db.DefaultOptions(dir).WithSyncWrites(true).WithLogger(nil))
			if err != nil {
				return nil, err
			}
			e, err := badger.Use(d, []byte("turnstone/"), nil)
			return hosted{e, d}, err
		},
	})
}
