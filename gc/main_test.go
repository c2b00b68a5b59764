package gc_test

import (
	"os"
	"testing"

	"github.com/turnstonedb/turnstone/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
