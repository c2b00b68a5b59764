// Package adk keeps sessions, artifacts and memories of Google's Agent Development Kit in a store of Turnstone:
// NewSessions returns a session.Service, NewArtifacts an artifact.Service and NewMemory a memory.Service. All work on any
// turnstone.Factory: a store in the process, or a client of a server. The adapter for Python reads what this one writes.
//
// A session of the kit is a session of the store, ADK/USER/ID with the names of app and user, in the group of its
// user. An event is a commit with one node, and the event's id is its turn id: an append that is repeated is stored
// once. The state of the session is a checkpoint part, which each revision and each fork has as it was then. What
// belongs to a user or an app is records of a session of their own, which change in the batch of the event that
// changes them.
package adk

import (
	"fmt"
	"strings"
)

// Names of sessions and groups. The number of names in an id tells what the session is for.
const (
	sessionRoot  = "adk"
	artifactRoot = "adk-artifacts"
	stateGroup   = "adk-state"
)

// required returns an error that names the fields which are empty.
func required(fields ...[2]string) error {
	var missing []string
	for _, f := range fields {
		if f[1] == "" {
			missing = append(missing, f[0])
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("adk: %s is required", strings.Join(missing, ", "))
	}
	return nil
}
