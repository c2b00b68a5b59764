package trpc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// UpdateAppState sets values of the state of an app. Their keys may have the prefix "app:".
func (s *Sessions) UpdateAppState(ctx context.Context, app string, state session.StateMap) error {
	if app == "" {
		return session.ErrAppNameRequired
	}
	return s.updateState(ctx, appID(app), session.StateAppPrefix, state)
}

// DeleteAppState deletes a value of the state of an app, if there is one.
func (s *Sessions) DeleteAppState(ctx context.Context, app, key string) error {
	if app == "" {
		return session.ErrAppNameRequired
	}
	return s.deleteState(ctx, appID(app), strings.TrimPrefix(key, session.StateAppPrefix))
}

// ListAppStates returns the state of an app, by keys without prefix.
func (s *Sessions) ListAppStates(ctx context.Context, app string) (session.StateMap, error) {
	if app == "" {
		return nil, session.ErrAppNameRequired
	}
	return s.listState(ctx, appID(app))
}

// UpdateUserState sets values of the state of a user. Their keys may have the prefix "user:", but not "app:" or
// "temp:".
func (s *Sessions) UpdateUserState(ctx context.Context, user session.UserKey, state session.StateMap) error {
	if err := user.CheckUserKey(); err != nil {
		return err
	}
	if err := without(state, session.StateAppPrefix, session.StateTempPrefix); err != nil {
		return err
	}
	return s.updateState(ctx, userID(user.AppName, user.UserID), session.StateUserPrefix, state)
}

// DeleteUserState deletes a value of the state of a user, if there is one.
func (s *Sessions) DeleteUserState(ctx context.Context, user session.UserKey, key string) error {
	if err := user.CheckUserKey(); err != nil {
		return err
	}
	return s.deleteState(ctx, userID(user.AppName, user.UserID), strings.TrimPrefix(key, session.StateUserPrefix))
}

// ListUserStates returns the state of a user, by keys without prefix.
func (s *Sessions) ListUserStates(ctx context.Context, user session.UserKey) (session.StateMap, error) {
	if err := user.CheckUserKey(); err != nil {
		return nil, err
	}
	return s.listState(ctx, userID(user.AppName, user.UserID))
}

// UpdateSessionState sets values of the state of a session, without an event. Their keys do not have the prefix
// "app:" or "user:".
func (s *Sessions) UpdateSessionState(ctx context.Context, key session.Key, state session.StateMap) error {
	if err := key.CheckSessionKey(); err != nil {
		return err
	}
	if err := without(state, session.StateAppPrefix, session.StateUserPrefix); err != nil {
		return err
	}
	parts, err := stateParts(state)
	if err != nil {
		return err
	}
	return s.commit(ctx, key, turnstone.Commit{Checkpoint: parts})
}

// without returns an error if a key of a state has one of the prefixes.
func without(state session.StateMap, prefixes ...string) error {
	for k := range state {
		for _, p := range prefixes {
			if strings.HasPrefix(k, p) {
				return fmt.Errorf("trpc: state %q: the prefix %q is not allowed here", k, p)
			}
		}
	}
	return nil
}

func (s *Sessions) updateState(ctx context.Context, id, prefix string, state session.StateMap) error {
	values := map[string][]byte{}
	for _, k := range slices.Sorted(maps.Keys(state)) {
		values[strings.TrimPrefix(k, prefix)] = state[k]
	}
	change := adapter.StateChange{ID: id}
	for k, v := range values {
		change.Values = append(change.Values, turnstone.RecordChange{Key: k, Value: v})
	}
	_, err := s.states.Commit(ctx, []adapter.StateChange{change})
	return err
}

func (s *Sessions) deleteState(ctx context.Context, id, key string) error {
	values, err := s.states.Read(ctx, id)
	if _, found := values[key]; err != nil || !found {
		return err // Deleting makes no session.
	}
	_, err = s.states.Commit(ctx, []adapter.StateChange{{ID: id, Values: []turnstone.RecordChange{{Key: key, Action: turnstone.DeleteRecord}}}})
	return err
}

func (s *Sessions) listState(ctx context.Context, id string) (session.StateMap, error) {
	values, err := s.states.Read(ctx, id)
	if err != nil {
		return nil, err
	}
	out := session.StateMap{}
	maps.Copy(out, values)
	return out, nil
}

// mergeState adds the state of its user and its app to a session. What it reads of these it keeps in read, if that is
// not nil, by the ids of their sessions.
func (s *Sessions) mergeState(ctx context.Context, of *session.Session, read map[string]map[string][]byte) error {
	for _, shared := range [][2]string{
		{session.StateAppPrefix, appID(of.AppName)},
		{session.StateUserPrefix, userID(of.AppName, of.UserID)},
	} {
		values, known := read[shared[1]]
		if !known {
			var err error
			if values, err = s.states.Read(ctx, shared[1]); err != nil {
				return err
			}
			if read != nil {
				read[shared[1]] = values
			}
		}
		for k, v := range values {
			of.SetState(shared[0]+k, v)
		}
	}
	return nil
}
