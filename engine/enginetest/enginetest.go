// Package enginetest tests drivers against the contract of engine.Engine. The
// whole test of a driver is one call of Run:
//
//	func TestContract(t *testing.T) {
//		enginetest.Run(t, enginetest.Driver{
//			Durable: true,
//			Open:    func(dir string) (engine.Engine, error) { return mydriver.Open(dir) },
//		})
//	}
//
// Each case tests one rule of the contract. Cases return errors instead of
// failing a testing.T, so that the suite itself can be tested: mutants of a correct
// engine must fail it (mutant_test.go).
//
// The package also has tools for tests of code that uses an engine. Faulty is an
// engine that fails as planned. Explore runs actors that share an engine under the
// orders of their calls that need at most a given number of preemptions.
package enginetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A Driver is what Run needs to know about an engine.
type Driver struct {
	// Open opens the store at dir, and creates it if dir does not exist. A durable
	// driver is given the same dir again and must find what it acknowledged.
	Open func(dir string) (engine.Engine, error)
	// Durable says that the engine keeps what it acknowledged when it is closed.
	Durable bool
	// Exclusive says that a second Open of the same directory fails with ErrLocked.
	Exclusive bool
	// Skip has the names of cases that the engine can't pass, and why.
	Skip map[string]string
}

// A rig is the driver, the directory and the open engine of one case.
type rig struct {
	Driver
	dir string
	e   engine.Engine
}

// reopen closes the engine and opens it again.
func (r *rig) reopen() (err error) {
	if err := r.e.Close(); err != nil {
		return err
	}
	e, err := r.Open(r.dir)
	if err == nil { // a driver's Open may return a nil pointer beside its error
		r.e = e
	}
	return err
}

type testCase struct {
	name  string
	check func(*rig) error
}

var cases = []testCase{
	{"GetReturnsValuesInKeyOrderAndNilForAbsent", getMissing},
	{"GetReadsOneSnapshot", getSnapshot},
	{"ScansFirstPageIsOneSnapshot", scanSnapshot},
	{"ScanYieldsByteOrderWithinRange", scanOrder},
	{"ScanHonoursLimitAndEarlyBreak", scanLimit},
	{"ScanReadsManyPagesCompletely", scanPages},
	{"ScanErrorEndsTheSequence", scanError},
	{"AGuardOfAScanIsOfTheSameSnapshot", scanGuard},
	{"GuardsSeeTheStateBeforeTheBatch", guards},
	{"AFailedGuardLeavesNothing", atomic},
	{"ABatchIsSeenWholeOrNotAtAll", neverHalf},
	{"InvalidBatchesAreRefusedBeforeAnyEffect", invalid},
	{"LimitsAreAcceptedAndOneMoreIsRefused", limits},
	{"NothingIsRetainedOrShared", aliasing},
	{"CountersLoseNothing", counter},
	{"NoWriteSkew", writeSkew},
	{"NoReadOnlyAnomaly", readOnlyAnomaly},
	{"ConflictsAreNeverSpurious", notSpurious},
	{"ReadsFollowAcknowledgedWrites", readYourWrites},
	{"AContextThatEndedLeavesNothing", cancelled},
	{"RandomHistoryAgreesWithTheModel", model},
	{"AcknowledgedWritesSurviveReopening", durable},
	{"VacuumKeepsWhatIsLiveBesideWriters", vacuum},
	{"VacuumLeavesNoRemovedByte", vacuumBytes},
	{"ASecondOpenNamesTheHolder", locked},
	{"AClosedEngineRefuses", closed},
	{"TheZeroValueIsClosed", zero},
}

// errSkip is what a case returns that the driver need not pass.
var errSkip = errors.New("does not apply to this driver")

// Run checks that the engines of d keep the contract of engine.Engine.
func Run(t *testing.T, d Driver) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := d.Skip[c.name]; why != "" {
				t.Skip(why)
			}
			dir := t.TempDir()
			if err := d.run(c, dir); errors.Is(err, errSkip) {
				t.Skip(err)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func (d Driver) run(c testCase, parent string) (err error) {
	r := &rig{Driver: d, dir: parent + "/store"}
	if r.e, err = d.Open(r.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.e.Close()) }()
	return c.check(r)
}

// bounded returns a context that ends after two minutes, so that an engine that
// hangs fails its case.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Minute)
}
