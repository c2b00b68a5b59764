package adk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/adk/v2/platform"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// Artifacts is an artifact.Service. It is safe for concurrent use.
//
// The store has a session for the artifacts of each of the kit's sessions, and one for those of a user, whose names
// begin with "user:". Sessions.Delete deletes the former with the conversation; whoever saves afterwards begins anew.
// The content of a version is an attachment, so the store has equal contents once. A record says what the version is,
// and another record has the number of the artifact's last version.
type Artifacts struct{ store turnstone.Factory }

var _ artifact.Service = (*Artifacts)(nil)

// NewArtifacts returns an artifact service on a store.
func NewArtifacts(store turnstone.Factory) *Artifacts { return &Artifacts{store} }

// about is what the adapter says of a version.
type about struct {
	Text bool       `json:"text,omitzero"` // the content is that of Part.Text, and not of Part.InlineData
	Part genai.Part `json:"part"`          // without its content
}

// place returns the id of the session that has an artifact of that name.
func place(app, user, session, name string) string {
	if strings.HasPrefix(name, "user:") {
		return adapter.Join(artifactRoot, app, user)
	}
	return adapter.Join(artifactRoot, app, user, session)
}

// missing is the error of what there is not.
func missing(name string) error { return fmt.Errorf("adk: artifact %q: %w", name, fs.ErrNotExist) }

// Save stores the next version of an artifact. The first one is 1. If Version is set, that one is stored, and it must
// be later than all before. After an error that matches turnstone.ErrOutcomeUnknown the version may be there.
func (a *Artifacts) Save(ctx context.Context, r *artifact.SaveRequest) (*artifact.SaveResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	if r.Version < 0 || r.Version == math.MaxInt64 {
		return nil, &turnstone.InvalidError{Where: "artifact", Reason: fmt.Sprintf("version %d can't be stored", r.Version)}
	}
	id := place(r.AppName, r.UserID, r.SessionID, r.FileName)
	// Reading an artifact changes nothing in this session: without KeepAll a prune could take the session for inactive.
	h, _, err := a.store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{
		Group: adapter.Join(artifactRoot, r.AppName, r.UserID), Retention: head.KeepAll,
	}})
	if err != nil {
		return nil, err
	}
	of := about{Part: *r.Part}
	content, mediaType := []byte(r.Part.Text), "text/plain"
	if d := r.Part.InlineData; d != nil {
		content, mediaType = d.Data, d.MIMEType
		rest := *d
		rest.Data, of.Part.InlineData = nil, &rest
	} else {
		of.Text, of.Part.Text = true, ""
	}
	f, err := adapter.SaveFile(ctx, h, r.FileName, mediaType, content, platform.Now(ctx), &of, r.Version)
	if err != nil {
		return nil, fmt.Errorf("adk: artifact %q: %w", r.FileName, err)
	}
	return &artifact.SaveResponse{Version: f.Version}, nil
}

// session returns the session that has an artifact. The error matches fs.ErrNotExist if there is none.
func (a *Artifacts) session(ctx context.Context, app, user, session, name string) (turnstone.Persistence, error) {
	h, err := a.store.Session(ctx, place(app, user, session, name))
	return h, absent(name, err)
}

// absent returns an error as that of an artifact: what there is not is fs.ErrNotExist.
func absent(name string, err error) error {
	switch {
	case adapter.Gone(err), errors.Is(err, fs.ErrNotExist):
		return missing(name)
	case err != nil:
		return fmt.Errorf("adk: artifact %q: %w", name, err)
	}
	return nil
}

// Load reads a version of an artifact, or the last one. If there is none, the error matches fs.ErrNotExist.
func (a *Artifacts) Load(ctx context.Context, r *artifact.LoadRequest) (*artifact.LoadResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	h, err := a.session(ctx, r.AppName, r.UserID, r.SessionID, r.FileName)
	if err != nil {
		return nil, err
	}
	f, content, err := adapter.LoadFile(ctx, h, r.FileName, r.Version)
	if err != nil {
		return nil, absent(r.FileName, err)
	}
	var of about
	if err := json.Unmarshal(f.About, &of); err != nil {
		return nil, fmt.Errorf("adk: artifact %q: version %d: %w", r.FileName, f.Version, err)
	}
	switch {
	case of.Text:
		of.Part.Text = string(content)
	case of.Part.InlineData == nil:
		return nil, fmt.Errorf("adk: artifact %q: version %d has no content", r.FileName, f.Version)
	default:
		of.Part.InlineData.Data = content
	}
	return &artifact.LoadResponse{Part: &of.Part}, nil
}

// Delete deletes a version of an artifact, or all of them. What there is not is no error. Of more than 255 versions
// the latest are deleted first, in several commits.
func (a *Artifacts) Delete(ctx context.Context, r *artifact.DeleteRequest) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("adk: %w", err)
	}
	h, err := a.session(ctx, r.AppName, r.UserID, r.SessionID, r.FileName)
	if err == nil {
		err = absent(r.FileName, adapter.DeleteFile(ctx, h, r.FileName, r.Version))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns the names of the artifacts of a session, and of those of its user, in their order.
func (a *Artifacts) List(ctx context.Context, r *artifact.ListRequest) (*artifact.ListResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	out := &artifact.ListResponse{FileNames: []string{}}
	for _, of := range []string{"", "user:"} {
		h, err := a.store.Session(ctx, place(r.AppName, r.UserID, r.SessionID, of))
		var names []string
		if err == nil {
			names, err = adapter.FileNames(ctx, h)
		}
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		out.FileNames = append(out.FileNames, names...)
	}
	slices.Sort(out.FileNames)
	return out, nil
}

// Versions returns the versions of an artifact, the last one first. If there are none, the error matches
// fs.ErrNotExist.
func (a *Artifacts) Versions(ctx context.Context, r *artifact.VersionsRequest) (*artifact.VersionsResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	out := &artifact.VersionsResponse{}
	h, err := a.session(ctx, r.AppName, r.UserID, r.SessionID, r.FileName)
	if err == nil {
		out.Versions, err = adapter.FileVersions(ctx, h, r.FileName)
	}
	if err == nil && len(out.Versions) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, absent(r.FileName, err)
	}
	return out, nil
}

// GetArtifactVersion returns what a version of an artifact is, or the last one, without its content. If there is
// none, the error matches fs.ErrNotExist.
func (a *Artifacts) GetArtifactVersion(ctx context.Context, r *artifact.GetArtifactVersionRequest) (*artifact.GetArtifactVersionResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	h, err := a.session(ctx, r.AppName, r.UserID, r.SessionID, r.FileName)
	if err != nil {
		return nil, err
	}
	f, err := adapter.FindFile(ctx, h, r.FileName, r.Version)
	if err != nil {
		return nil, absent(r.FileName, err)
	}
	return &artifact.GetArtifactVersionResponse{ArtifactVersion: &artifact.ArtifactVersion{Version: f.Version, MimeType: f.Content.MediaType, CreateTime: f.Created}}, nil
}
