package trpc_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// An operator prunes beside an agent: what it keeps of a user and an app outlives every prune.
func TestTR6_APruneLeavesTheStateOfUsersAndApps(t *testing.T) {
	st := storetest.URL(t, "mem:")
	s := trpc.NewSessions(st.Factory(), trpc.Options{})
	must(s.CreateSession(ctx, chat, nil))
	user := session.UserKey{AppName: chat.AppName, UserID: chat.UserID}
	if err := s.UpdateUserState(ctx, user, session.StateMap{"name": []byte("Ada")}); err != nil {
		t.Fatal(err)
	}
	if err := s.UpdateAppState(ctx, chat.AppName, session.StateMap{"mode": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Millisecond)
	for _, o := range []gc.PruneOptions{{Inactive: time.Nanosecond}, {Bytes: 1}} {
		must(st.Prune(ctx, o))
	}
	must(st.Vacuum(ctx, gc.VacuumOptions{}))
	got := fmt.Sprintf("%q %q", maps.Collect(maps.All(must(s.ListUserStates(ctx, user)))), maps.Collect(maps.All(must(s.ListAppStates(ctx, chat.AppName)))))
	if want := `map["name":"Ada"] map["mode":"x"]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
