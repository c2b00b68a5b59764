package trpc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"testing"

	"trpc.group/trpc-go/trpc-agent-go/artifact"
	inmemoryartifact "trpc.group/trpc-go/trpc-agent-go/artifact/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// The service of artifacts does what the kit's service in memory does, on every engine and through a server.
func TestTR10_ArtifactsAreThoseOfTheKitInMemory(t *testing.T) {
	ctx := t.Context()
	// The kit's service confuses sessions whose names have slashes, and one that is called "user".
	pick := func(r *rand.Rand) (artifact.SessionInfo, string) {
		return artifact.SessionInfo{AppName: "app", UserID: []string{"u", "v%2Fw"}[r.IntN(2)], SessionID: []string{"s", "é"}[r.IntN(2)]}, []string{"a", "a/b", "a/b/7ffffffffffffffe", "user:c"}[r.IntN(4)]
	}
	save := func(s artifact.Service, r *rand.Rand) (any, error) {
		i, name := pick(r)
		return s.SaveArtifact(ctx, i, name, &artifact.Artifact{Data: bytes.Repeat([]byte{byte(r.IntN(256)), 0}, 1+r.IntN(50_000)), MimeType: "image/png", URL: "u", Name: "é"})
	}
	load := func(s artifact.Service, r *rand.Rand) (any, error) {
		i, name := pick(r)
		version := r.IntN(5) - 1
		if r.IntN(2) == 0 {
			return s.LoadArtifact(ctx, i, name, nil)
		}
		return s.LoadArtifact(ctx, i, name, &version)
	}
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		adaptertest.Alike(t, []artifact.Service{trpc.NewArtifacts(open(t)), inmemoryartifact.NewService()}, 200, 50, map[string]adaptertest.Call[artifact.Service]{
			"save": save, "save more": save, "load": load, "load more": load,
			"list": func(s artifact.Service, r *rand.Rand) (any, error) {
				i, name := pick(r)
				names, err := s.ListArtifactKeys(ctx, i)
				if err != nil {
					return nil, err
				}
				versions, err := s.ListVersions(ctx, i, name)
				return fmt.Sprint(names, versions), err
			},
			"delete": func(s artifact.Service, r *rand.Rand) (any, error) {
				i, name := pick(r)
				return nil, s.DeleteArtifact(ctx, i, name)
			},
		})
	})
}

// What is wrong is refused, a version that there is not is told from an artifact that there is not, and equal contents are
// stored once.
func TestTR10_EqualArtifactsAreStoredOnce(t *testing.T) {
	store := storetest.URL(t, "mem:")
	s := trpc.NewArtifacts(store.Factory())
	i := artifact.SessionInfo{AppName: "a", UserID: "u", SessionID: "s"}
	data := make([]byte, 300_000)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(data)
	for n := range 3 {
		if v, err := s.SaveArtifact(t.Context(), i, "f", &artifact.Artifact{Data: data}); v != n || err != nil {
			t.Fatal(v, err)
		}
	}
	if st, err := store.Stats(t.Context()); err != nil || st.Stored.Total() > 400_000 {
		t.Errorf("%+v, %v", st, err)
	}
	seven := 7
	if a, err := s.LoadArtifact(t.Context(), i, "f", &seven); a != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Error(a, err)
	}
	if a, err := s.LoadArtifact(t.Context(), i, "none", &seven); a != nil || err != nil {
		t.Error(a, err)
	}
	for _, bad := range []*artifact.Artifact{nil, {MimeType: "\xff"}} {
		if _, err := s.SaveArtifact(t.Context(), i, "bad", bad); err == nil {
			t.Errorf("%+v is stored", bad)
		}
	}
	if err := s.DeleteArtifact(t.Context(), i, "f"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Vacuum(t.Context(), gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if st, err := store.Stats(t.Context()); err != nil || st.Stored.Total() > 100_000 {
		t.Errorf("%+v, %v", st, err)
	}
}
