//go:build race

package persistencetest

// race says whether the race detector runs.
const race = true
