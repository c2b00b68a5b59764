package adk_test

import (
	"context"
	"os"
	"testing"

	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/sessiontestsuite"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

func TestAD1_TheSuiteOfTheKitPassesOnEveryEngine(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		sessiontestsuite.RunServiceTests(t, sessiontestsuite.SuiteOptions{SupportsUserProvidedSessionID: true}, func(t *testing.T) session.Service {
			return adk.NewSessions(open(t))
		})
	})
}
