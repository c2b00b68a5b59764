package adapter

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
	"strconv"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
)

// A File is a version of a file of a session, without its content. The content is an attachment, so the store has equal
// contents once. A record says what the version is, and another record has the number of the last version of the file.
type File struct {
	Version int64           `json:"version"` // from 1 on
	Created time.Time       `json:"created"`
	Node    string          `json:"node"`            // the key of the node that refers to the content
	Content blob.Attachment `json:"content"`         // its media type is that of SaveFile
	About   json.RawMessage `json:"about,omitempty"` // what the adapter says of it
}

const (
	namePrefix    = "name/"                  // and the name of a file: the key of the record with its last version's number
	versionPrefix = "version/"               // and the name and the number: the key of a version's record
	maxDeleted    = turnstone.MaxRecords - 1 // versions that one commit deletes, beside the record of the name
)

// filePrefix returns what the keys of the records of a file's versions begin with, and no others.
func filePrefix(name string) string { return versionPrefix + escaper.Replace(name) + "/" }

// fileKey returns the key of a version's record. A later version has a lesser key, so a list begins with the last version.
func fileKey(name string, v int64) string {
	return fmt.Sprintf("%s%016x", filePrefix(name), math.MaxInt64-v)
}

// SaveFile stores the next version of a file, and returns it. If version is not 0, that one is stored; the error matches
// fs.ErrExist if it is not later than all before. After an error that matches turnstone.ErrOutcomeUnknown the version may
// be there. The name and the media type have 256 bytes at most.
func SaveFile(ctx context.Context, h turnstone.Persistence, name, mediaType string, content []byte, created time.Time, about any, version int64) (f File, err error) {
	f = File{Created: created, Node: rand.Text()}
	if f.About, err = JSON(about); err != nil {
		return f, err
	}
	if f.Content, err = h.PutAttachment(ctx, bytes.NewReader(content), int64(len(content)), mediaType, name); err != nil {
		return f, err
	}
	for {
		last, expect, err := lastVersion(ctx, h, name)
		if err != nil {
			return f, err
		}
		if f.Version = cmp.Or(version, last+1); f.Version <= last {
			return f, fmt.Errorf("version %d is not later than the last one, %d: %w", f.Version, last, fs.ErrExist)
		}
		value, err := JSON(&f)
		if err != nil {
			return f, err
		}
		_, err = h.Commit(ctx, turnstone.Commit{
			Expected: turnstone.AnyRevision,
			// The turn id makes a client repeat the commit when the answer is lost.
			Turn:  f.Node + " " + strconv.FormatInt(f.Version, 10),
			Nodes: []turnstone.NewNode{{Kind: "artifact", Key: f.Node, Parent: turnstone.RefNone(), Attachments: []blob.Attachment{f.Content}}},
			Records: []turnstone.RecordChange{
				{Key: namePrefix + name, Value: strconv.AppendInt(nil, f.Version, 10), Expect: expect},
				{Key: fileKey(name, f.Version), Value: value},
			},
		})
		if err == nil || !errors.Is(err, turnstone.ErrRecordConflict) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return f, err
		}
		// Somebody else has saved or deleted a version.
	}
}

// lastVersion returns the last version of a file, or 0, and what version its record is of.
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
		return 0, "", fmt.Errorf("session %q: record %q is no version: %w", h.ID(), r.Key, err)
	}
	return last, r.Version, nil
}

// files returns versions of a file, the latest first, and their records.
func files(ctx context.Context, h turnstone.Persistence, name, after string, limit int) (page turnstone.RecordPage, out []File, err error) {
	page, err = h.Records(ctx, turnstone.RecordQuery{Prefix: filePrefix(name), After: after, Limit: limit})
	for i := 0; err == nil && i < len(page.Records); i++ {
		var f File
		f, err = fileOf(&page.Records[i])
		out = append(out, f)
	}
	return page, out, err
}

func fileOf(r *turnstone.Record) (f File, err error) {
	if err := json.Unmarshal(r.Value, &f); err != nil {
		return f, fmt.Errorf("session %q: record %q is no version: %w", r.Session, r.Key, err)
	}
	return f, nil
}

// FindFile returns a version of a file, or the last one for 0. If there is none, the error matches fs.ErrNotExist.
func FindFile(ctx context.Context, h turnstone.Persistence, name string, version int64) (f File, err error) {
	if version > 0 {
		r, err := h.Record(ctx, fileKey(name, version))
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			err = fs.ErrNotExist
		}
		if err != nil {
			return f, err
		}
		return fileOf(&r)
	}
	_, all, err := files(ctx, h, name, "", 1)
	if err == nil && len(all) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return f, err
	}
	return all[0], nil
}

// LoadFile returns a version of a file with its content, or the last one for 0. The error is that of FindFile.
func LoadFile(ctx context.Context, h turnstone.Persistence, name string, version int64) (f File, content []byte, err error) {
	for {
		before := f.Node
		if f, err = FindFile(ctx, h, name, version); err != nil {
			return f, nil, err
		}
		var b bytes.Buffer
		_, err = h.ReadAttachment(ctx, &b, f.Content.ID)
		if !errors.Is(err, turnstone.ErrBlobNotFound) || f.Node == before {
			return f, b.Bytes(), err
		} // else it was deleted meanwhile
	}
}

// FileNames returns the names of the files of a session, in their order.
func FileNames(ctx context.Context, h turnstone.Persistence) (out []string, err error) {
	found, _, err := Records(ctx, h, namePrefix)
	for _, r := range found {
		out = append(out, strings.TrimPrefix(r.Key, namePrefix))
	}
	return out, err
}

// FileVersions returns the versions of a file, the last one first: none if there is no such file.
func FileVersions(ctx context.Context, h turnstone.Persistence, name string) (out []int64, err error) {
	for after := ""; ; {
		page, all, err := files(ctx, h, name, after, turnstone.MaxPage)
		if err != nil {
			return nil, err
		}
		for i := range all {
			out = append(out, all[i].Version)
		}
		if after = page.Next; after == "" {
			return out, nil
		}
	}
}

// DeleteFile deletes a version of a file, or all of them for 0. What there is not is no error. Of more than 255 versions
// the latest are deleted first, in several commits.
func DeleteFile(ctx context.Context, h turnstone.Persistence, name string, version int64) error {
	for {
		more, err := deleteSome(ctx, h, name, version)
		if errors.Is(err, turnstone.ErrRecordConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			continue // Somebody else has saved or deleted a version.
		}
		if err != nil || !more {
			return err
		}
	}
}

// deleteSome deletes a version of a file, or as many of all as one commit can, and reports whether there are more.
func deleteSome(ctx context.Context, h turnstone.Persistence, name string, only int64) (more bool, err error) {
	_, expect, err := lastVersion(ctx, h, name)
	if err != nil || expect == turnstone.NoRecord {
		return false, err
	}
	most := maxDeleted
	if only != 0 {
		most = 2 // as many as tell whether others stay
	}
	page, all, err := files(ctx, h, name, "", most)
	if err != nil {
		return false, err
	}
	rest, doomed := page.Next != "", page.Records
	if only != 0 {
		r, err := h.Record(ctx, fileKey(name, only))
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		f, err := fileOf(&r)
		if err != nil {
			return false, err
		}
		rest, doomed, all = rest || len(all) > 1, []turnstone.Record{r}, []File{f}
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
