package adk_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
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

// What belongs to a conversation is deleted with it, and what belongs to its user stays.
func TestAD8_ArtifactsAreDeletedWithTheirConversation(t *testing.T) {
	st := storetest.URL(t, "mem:")
	c := chats{t, adk.NewSessions(st.Factory())}
	files := adk.NewArtifacts(st.Factory())
	names := []string{"notes", "user:photo"}
	for _, id := range []string{"one", "two"} {
		c.create(id, nil)
		for _, name := range names {
			if _, err := files.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: id, FileName: name, Part: genai.NewPartFromText(id)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A deletion that fails, at whichever of its two calls, leaves the session where it is found and deleted again.
	one := &session.DeleteRequest{AppName: "app", UserID: "user", SessionID: "one"}
	failed := errors.New("it fails")
	for passing := range 2 {
		if err := adk.NewSessions(&failingDeletions{st.Factory(), passing, failed}).Delete(ctx, one); !errors.Is(err, failed) {
			t.Errorf("the error is %v", err)
		}
		c.get("one")
	}
	for range 2 { // deleting it again is no error
		if err := c.Delete(ctx, one); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string][]string{"one": {"user:photo"}, "two": names} {
		r, err := files.List(ctx, &artifact.ListRequest{AppName: "app", UserID: "user", SessionID: id})
		if err != nil || !slices.Equal(r.FileNames, want) {
			t.Errorf("%s has %+v, %v", id, r, err)
		}
	}
	c.create("one", nil)
	saved, err := files.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "one", FileName: "notes", Part: genai.NewPartFromText("new")})
	if err != nil || saved.Version != 1 {
		t.Errorf("the first version of a new session: %+v, %v", saved, err)
	}
}

// failingDeletions is a store in which some deletions pass, and all after them fail.
type failingDeletions struct {
	turnstone.Factory
	passing int
	err     error
}

func (f *failingDeletions) Delete(ctx context.Context, id string, policy turnstone.ChildPolicy) error {
	if f.passing--; f.passing < 0 {
		return f.err
	}
	return f.Factory.Delete(ctx, id, policy)
}
