package adk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/adk/v2/platform"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/blob"
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

// Prefixes of keys of records, and how many versions are deleted in one commit.
const (
	namePrefix    = "name/"
	versionPrefix = "version/"
	maxDeleted    = turnstone.MaxRecords - 1 // and the record of the name
)

// A version is the value of a version's record.
type version struct {
	Version int64           `json:"version"`
	Created time.Time       `json:"created"`
	Node    string          `json:"node"` // the key of the node that refers to the content
	Content blob.Attachment `json:"content"`
	Text    bool            `json:"text,omitzero"` // the content is that of Part.Text, and not of Part.InlineData
	Part    genai.Part      `json:"part"`          // without its content
}

// key returns the key of a version's record. A later version has a lesser key, so a list begins with the last version.
func key(name string, v int64) string {
	return fmt.Sprintf("%s%s/%016x", versionPrefix, name, math.MaxInt64-v)
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
	v := version{Created: platform.Now(ctx), Node: rand.Text(), Part: *r.Part}
	content, mediaType := []byte(r.Part.Text), "text/plain"
	if d := r.Part.InlineData; d != nil {
		content, mediaType = d.Data, d.MIMEType
		rest := *d
		rest.Data, v.Part.InlineData = nil, &rest
	} else {
		v.Text, v.Part.Text = true, ""
	}
	if v.Content, err = h.PutAttachment(ctx, bytes.NewReader(content), int64(len(content)), mediaType, r.FileName); err != nil {
		return nil, err
	}
	for {
		last, expect, err := lastVersion(ctx, h, r.FileName)
		if err != nil {
			return nil, err
		}
		v.Version = cmp.Or(r.Version, last+1)
		if v.Version <= last {
			return nil, fmt.Errorf("adk: artifact %q: version %d is not later than the last one, %d: %w", r.FileName, v.Version, last, fs.ErrExist)
		}
		value, err := adapter.JSON(&v)
		if err != nil {
			return nil, fmt.Errorf("adk: artifact %q: %w", r.FileName, err)
		}
		_, err = h.Commit(ctx, turnstone.Commit{
			Expected: turnstone.AnyRevision,
			// The turn id makes a client repeat the commit when the answer is lost.
			Turn:  v.Node + " " + strconv.FormatInt(v.Version, 10),
			Nodes: []turnstone.NewNode{{Kind: "artifact", Key: v.Node, Parent: turnstone.RefNone(), Attachments: []blob.Attachment{v.Content}}},
			Records: []turnstone.RecordChange{
				{Key: namePrefix + r.FileName, Value: strconv.AppendInt(nil, v.Version, 10), Expect: expect},
				{Key: key(r.FileName, v.Version), Value: value},
			},
		})
		switch {
		case err == nil:
			return &artifact.SaveResponse{Version: v.Version}, nil
		case !errors.Is(err, turnstone.ErrRecordConflict) || errors.Is(err, turnstone.ErrOutcomeUnknown):
			return nil, err
		}
		// Somebody else has saved or deleted a version.
	}
}

// lastVersion returns the last version of an artifact, or 0, and what version its record is of.
func lastVersion(ctx context.Context, h turnstone.Persistence, name string) (int64, turnstone.RecordVersion, error) {
	r, err := h.Record(ctx, namePrefix+name)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return 0, turnstone.NoRecord, nil
	}
	if err != nil {
		return 0, "", err
	}
	last, err := strconv.ParseInt(string(r.Value), 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("adk: session %q: record %q is no version: %w", h.ID(), r.Key, err)
	}
	return last, r.Version, nil
}

// versions returns versions of an artifact, the latest first, and their records.
func versions(ctx context.Context, h turnstone.Persistence, name, after string, limit int) (page turnstone.RecordPage, out []version, err error) {
	page, err = h.Records(ctx, turnstone.RecordQuery{Prefix: versionPrefix + name + "/", After: after, Limit: limit})
	for i := 0; err == nil && i < len(page.Records); i++ {
		var v version
		v, err = versionOf(&page.Records[i])
		out = append(out, v)
	}
	return page, out, err
}

func versionOf(r *turnstone.Record) (v version, err error) {
	if err := json.Unmarshal(r.Value, &v); err != nil {
		return v, fmt.Errorf("adk: session %q: record %q is no version: %w", r.Session, r.Key, err)
	}
	return v, nil
}

// find returns a version of an artifact, or the last one for 0. What there is not is fs.ErrNotExist.
func (a *Artifacts) find(ctx context.Context, app, user, session, name string, n int64) (h turnstone.Persistence, v version, err error) {
	if h, err = a.store.Session(ctx, place(app, user, session, name)); err == nil {
		if n > 0 {
			var r turnstone.Record
			if r, err = h.Record(ctx, key(name, n)); err == nil {
				v, err = versionOf(&r)
			}
		} else {
			var all []version
			if _, all, err = versions(ctx, h, name, "", 1); len(all) > 0 {
				v = all[0]
			} else if err == nil {
				err = missing(name)
			}
		}
	}
	if adapter.Gone(err) || errors.Is(err, turnstone.ErrRecordNotFound) {
		err = missing(name)
	}
	return h, v, err
}

// Load reads a version of an artifact, or the last one. If there is none, the error matches fs.ErrNotExist.
func (a *Artifacts) Load(ctx context.Context, r *artifact.LoadRequest) (*artifact.LoadResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	var v version
	var content bytes.Buffer
	for {
		h, found, err := a.find(ctx, r.AppName, r.UserID, r.SessionID, r.FileName, r.Version)
		if err != nil {
			return nil, err
		}
		again := v.Node == found.Node
		v = found
		content.Reset()
		_, err = h.ReadAttachment(ctx, &content, v.Content.ID)
		if err == nil {
			break
		}
		if !errors.Is(err, turnstone.ErrBlobNotFound) || again {
			return nil, err
		} // else it was deleted meanwhile
	}
	part := v.Part
	switch {
	case v.Text:
		part.Text = content.String()
	case part.InlineData == nil:
		return nil, fmt.Errorf("adk: artifact %q: version %d has no content", r.FileName, v.Version)
	default:
		part.InlineData.Data = content.Bytes()
	}
	return &artifact.LoadResponse{Part: &part}, nil
}

// Delete deletes a version of an artifact, or all of them. What there is not is no error. Of more than 255 versions
// the latest are deleted first, in several commits.
func (a *Artifacts) Delete(ctx context.Context, r *artifact.DeleteRequest) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("adk: %w", err)
	}
	h, err := a.store.Session(ctx, place(r.AppName, r.UserID, r.SessionID, r.FileName))
	for more := true; more && err == nil; {
		more, err = deleteSome(ctx, h, r.FileName, r.Version)
		if errors.Is(err, turnstone.ErrRecordConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown) { // Somebody else has saved or deleted a version.
			more, err = true, nil
		}
	}
	if adapter.Gone(err) {
		return nil
	}
	return err
}

// deleteSome deletes a version of an artifact, or as many of all as one commit can, and reports whether there are more.
func deleteSome(ctx context.Context, h turnstone.Persistence, name string, only int64) (more bool, err error) {
	_, expect, err := lastVersion(ctx, h, name)
	if err != nil || expect == turnstone.NoRecord {
		return false, err
	}
	most := maxDeleted
	if only != 0 {
		most = 2 // as many as tell whether others stay
	}
	page, all, err := versions(ctx, h, name, "", most)
	if err != nil {
		return false, err
	}
	rest, doomed := page.Next != "", page.Records
	if only != 0 {
		r, err := h.Record(ctx, key(name, only))
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		v, err := versionOf(&r)
		if err != nil {
			return false, err
		}
		rest, doomed, all = rest || len(all) > 1, []turnstone.Record{r}, []version{v}
	}
	// The record of the name changes with each version that is saved.
	named := turnstone.RecordChange{Key: namePrefix + name, Action: turnstone.DeleteRecord, Expect: expect}
	if rest {
		named.Action = turnstone.CheckRecord
	}
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Records: []turnstone.RecordChange{named}}
	keys := make([]string, len(all))
	for i, r := range doomed {
		keys[i] = all[i].Node
		c.Records = append(c.Records, turnstone.RecordChange{Key: r.Key, Action: turnstone.DeleteRecord, Expect: r.Version})
	}
	nodes, err := h.NodesByKey(ctx, keys...)
	if err != nil {
		return false, err
	}
	for _, n := range nodes {
		c.Tombstone = append(c.Tombstone, n.ID)
	}
	_, err = h.Commit(ctx, c)
	return rest && only == 0, err
}

// List returns the names of the artifacts of a session, and of those of its user, in their order.
func (a *Artifacts) List(ctx context.Context, r *artifact.ListRequest) (*artifact.ListResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	out := &artifact.ListResponse{FileNames: []string{}}
	for _, of := range []string{"", "user:"} {
		h, err := a.store.Session(ctx, place(r.AppName, r.UserID, r.SessionID, of))
		for q := (turnstone.RecordQuery{Prefix: namePrefix, Limit: turnstone.MaxPage}); err == nil; {
			var page turnstone.RecordPage
			if page, err = h.Records(ctx, q); err != nil {
				break
			}
			for _, record := range page.Records {
				out.FileNames = append(out.FileNames, strings.TrimPrefix(record.Key, namePrefix))
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
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
	h, err := a.store.Session(ctx, place(r.AppName, r.UserID, r.SessionID, r.FileName))
	for after := ""; err == nil; {
		var page turnstone.RecordPage
		var all []version
		if page, all, err = versions(ctx, h, r.FileName, after, turnstone.MaxPage); err != nil {
			break
		}
		for _, v := range all {
			out.Versions = append(out.Versions, v.Version)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if adapter.Gone(err) || err == nil && len(out.Versions) == 0 {
		err = missing(r.FileName)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// GetArtifactVersion returns what a version of an artifact is, or the last one, without its content. If there is
// none, the error matches fs.ErrNotExist.
func (a *Artifacts) GetArtifactVersion(ctx context.Context, r *artifact.GetArtifactVersionRequest) (*artifact.GetArtifactVersionResponse, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("adk: %w", err)
	}
	_, v, err := a.find(ctx, r.AppName, r.UserID, r.SessionID, r.FileName, r.Version)
	if err != nil {
		return nil, err
	}
	return &artifact.GetArtifactVersionResponse{ArtifactVersion: &artifact.ArtifactVersion{Version: v.Version, MimeType: v.Content.MediaType, CreateTime: v.Created}}, nil
}
