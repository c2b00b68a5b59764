package trpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/artifact"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const artifactRoot = "trpc-artifacts"

// Artifacts is an artifact.Service. It is safe for concurrent use, in several processes.
//
// The store has a session for the artifacts of each of the kit's sessions, and one for those of a user, whose names begin
// with "user:". The content of a version is an attachment, so the store has equal contents once. Versions are numbered
// from 0. Names and media types have 256 bytes at most. The artifacts of a session stay when the session is deleted.
type Artifacts struct{ store turnstone.Factory }

var _ artifact.Service = (*Artifacts)(nil)

// NewArtifacts returns an artifact service on a store.
func NewArtifacts(store turnstone.Factory) *Artifacts { return &Artifacts{store} }

// shown is what an artifact has beside its content and its media type.
type shown struct {
	URL  string `json:"url,omitempty"`
	Name string `json:"name,omitempty"`
}

// placeOfFile returns the id of the session that has an artifact of that name.
func placeOfFile(i artifact.SessionInfo, name string) string {
	if strings.HasPrefix(name, "user:") {
		return adapter.Join(artifactRoot, i.AppName, i.UserID)
	}
	return adapter.Join(artifactRoot, i.AppName, i.UserID, i.SessionID)
}

// SaveArtifact implements artifact.Service. It returns the number of the version. After an error that matches
// turnstone.ErrOutcomeUnknown the version may be there.
func (a *Artifacts) SaveArtifact(ctx context.Context, i artifact.SessionInfo, name string, of *artifact.Artifact) (int, error) {
	if of == nil || name == "" {
		return 0, errors.New("trpc: the artifact is nil or has no name")
	}
	// Reading an artifact changes nothing in this session: without KeepAll a prune could take the session for inactive.
	h, _, err := a.store.Create(ctx, turnstone.Request{ID: placeOfFile(i, name), Metadata: head.Metadata{
		Group: adapter.Join(artifactRoot, i.AppName, i.UserID), Retention: head.KeepAll,
	}})
	if err != nil {
		return 0, err
	}
	f, err := adapter.SaveFile(ctx, h, name, of.MimeType, of.Data, time.Now(), &shown{of.URL, of.Name}, 0)
	if err != nil {
		return 0, fmt.Errorf("trpc: artifact %q: %w", name, err)
	}
	return int(f.Version - 1), nil
}

// found returns the session that has an artifact, or nil if there is none.
func (a *Artifacts) found(ctx context.Context, i artifact.SessionInfo, name string) (turnstone.Persistence, error) {
	h, err := a.store.Session(ctx, placeOfFile(i, name))
	if adapter.Gone(err) {
		return nil, nil
	}
	return h, err
}

// LoadArtifact implements artifact.Service: it returns a version, or the last one if version is nil. If there is no such
// artifact it returns nil, and if the artifact has no such version an error that matches fs.ErrNotExist, as the kit's
// services do.
func (a *Artifacts) LoadArtifact(ctx context.Context, i artifact.SessionInfo, name string, version *int) (*artifact.Artifact, error) {
	h, err := a.found(ctx, i, name)
	if h == nil {
		return nil, err
	}
	wanted := int64(0)
	if version != nil {
		if wanted = int64(*version) + 1; wanted < 1 {
			wanted = 1 << 62 // no version
		}
	}
	f, content, err := adapter.LoadFile(ctx, h, name, wanted)
	if errors.Is(err, fs.ErrNotExist) && version != nil {
		if _, other := adapter.FindFile(ctx, h, name, 0); other == nil {
			return nil, fmt.Errorf("trpc: artifact %q: version %d: %w", name, *version, fs.ErrNotExist)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), adapter.Gone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("trpc: artifact %q: %w", name, err)
	}
	var s shown
	if err := json.Unmarshal(f.About, &s); err != nil {
		return nil, fmt.Errorf("trpc: artifact %q: version %d: %w", name, f.Version-1, err)
	}
	return &artifact.Artifact{Data: content, MimeType: f.Content.MediaType, URL: s.URL, Name: s.Name}, nil
}

// ListArtifactKeys implements artifact.Service: the names of the artifacts of a session and of its user, in their order.
func (a *Artifacts) ListArtifactKeys(ctx context.Context, i artifact.SessionInfo) ([]string, error) {
	var out []string
	for _, of := range []string{"", "user:"} {
		h, err := a.found(ctx, i, of)
		if err != nil {
			return nil, err
		}
		if h == nil {
			continue
		}
		names, err := adapter.FileNames(ctx, h)
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		out = append(out, names...)
	}
	slices.Sort(out)
	return out, nil
}

// DeleteArtifact implements artifact.Service: it deletes all versions. What there is not is no error.
func (a *Artifacts) DeleteArtifact(ctx context.Context, i artifact.SessionInfo, name string) error {
	h, err := a.found(ctx, i, name)
	if h != nil {
		err = adapter.DeleteFile(ctx, h, name, 0)
	}
	if adapter.Gone(err) {
		return nil
	}
	return err
}

// ListVersions implements artifact.Service: the first version comes first.
func (a *Artifacts) ListVersions(ctx context.Context, i artifact.SessionInfo, name string) ([]int, error) {
	out := []int{}
	h, err := a.found(ctx, i, name)
	if h == nil {
		return out, err
	}
	versions, err := adapter.FileVersions(ctx, h, name)
	if err != nil && !adapter.Gone(err) {
		return nil, err
	}
	for _, v := range slices.Backward(versions) {
		out = append(out, int(v-1))
	}
	return out, nil
}
