package adk_test

import (
	"testing"
	"time"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// An operator prunes beside an agent: what it keeps of a user, and its artifacts, outlive every prune.
func TestAD7_APruneLeavesStateAndArtifactsOfUsersAndApps(t *testing.T) {
	st := storetest.URL(t, "mem:")
	c := chats{t, adk.NewSessions(st.Factory())}
	files := adk.NewArtifacts(st.Factory())
	c.create("old", map[string]any{"user:name": "Ada", "app:mode": "x", "own": 1})
	for _, name := range []string{"user:photo", "notes"} {
		if _, err := files.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "old", FileName: name, Part: genai.NewPartFromText(name)}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Millisecond)
	for _, o := range []gc.PruneOptions{{Inactive: time.Nanosecond}, {Bytes: 1}} {
		if _, err := st.Prune(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := shows(c.create("new", nil)); got != "app:mode=x user:name=Ada" {
		t.Errorf("the state is %q", got)
	}
	for _, name := range []string{"user:photo", "notes"} {
		r, err := files.Load(ctx, &artifact.LoadRequest{AppName: "app", UserID: "user", SessionID: "old", FileName: name})
		if err != nil || r.Part.Text != name {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
