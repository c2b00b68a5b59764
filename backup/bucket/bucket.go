// Package bucket opens places for backups by their addresses: buckets of object stores, with gocloud.dev/blob, and
// directories. It is apart from package backup, so that a host which does not need them does not build the clients of
// three object stores.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"strings"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob:
	_ "gocloud.dev/blob/gcsblob"   // gs:
	_ "gocloud.dev/blob/s3blob"    // s3:
	"gocloud.dev/gcerrors"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
)

// Open opens what an address names:
//
//   - s3://BUCKET/PREFIX, with the parameters region, endpoint, use_path_style and others of gocloud.dev/blob/s3blob, and
//     what the client of AWS takes from the environment. The store has to know conditional writes (If-None-Match), as S3
//     does since 2024: without them two processes that make backups to one place at the same time are not kept apart.
//   - gs://BUCKET/PREFIX, for Google Cloud Storage: see gocloud.dev/blob/gcsblob.
//   - azblob://CONTAINER/PREFIX, for Azure Blob Storage: see gocloud.dev/blob/azureblob.
//   - a directory of the file system: see backup.Directory.
//
// Open does not connect to the store. The caller closes what it returns.
func Open(ctx context.Context, address string) (backup.Target, io.Closer, error) {
	u, err := url.Parse(address)
	if err != nil || !strings.Contains(address, "://") {
		if address == "" {
			return nil, nil, invalid("the address is empty")
		}
		return backup.Directory(address), io.NopCloser(nil), nil
	}
	if !blob.DefaultURLMux().ValidBucketScheme(u.Scheme) {
		return nil, nil, invalid("no object store is called %q: want s3, gs, azblob, or a directory", u.Scheme)
	}
	prefix := strings.Trim(u.Path, "/")
	u.Path = ""
	if q := u.Query(); u.Scheme == "s3" && !q.Has("response_checksum_validation") {
		q.Set("response_checksum_validation", "when_required") // What is read has hashes of its own.
		u.RawQuery = q.Encode()
	}
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, nil, err
	}
	if prefix != "" {
		b = blob.PrefixedBucket(b, prefix+"/")
	}
	return New(b), b, nil
}

func invalid(format string, args ...any) error {
	return &turnstone.InvalidError{Where: "backup", Reason: fmt.Sprintf(format, args...)}
}

// New returns a bucket as a target.
func New(b *blob.Bucket) backup.Target { return &bucket{b} }

type bucket struct{ b *blob.Bucket }

func (t *bucket) Put(ctx context.Context, name string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // If r fails, so that nothing is stored.
	w, err := t.b.NewWriter(ctx, name, &blob.WriterOptions{
		IfNotExist: true, ContentType: "application/octet-stream", DisableContentTypeDetection: true,
	})
	if err != nil {
		return mapped(err)
	}
	if _, err := io.Copy(w, r); err != nil {
		cancel()
		_ = w.Close()
		return mapped(err)
	}
	return mapped(w.Close())
}

// mapped makes err match the error of package fs that Target asks for.
func mapped(err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	case gcerrors.NotFound:
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func (t *bucket) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	r, err := t.b.NewRangeReader(ctx, name, offset, length, nil)
	if err != nil {
		return nil, mapped(err)
	}
	return r, nil
}

func (t *bucket) List(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all := t.b.List(&blob.ListOptions{Prefix: dir, Delimiter: "/"})
		for {
			o, err := all.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", mapped(err))
				return
			}
			if name := strings.TrimPrefix(o.Key, dir); name != "" && !yield(name, nil) {
				return
			}
		}
	}
}

func (t *bucket) Delete(ctx context.Context, name string) error {
	if !strings.HasSuffix(name, "/") {
		if err := t.b.Delete(ctx, name); gcerrors.Code(err) != gcerrors.NotFound {
			return err
		}
		return nil
	}
	all := t.b.List(&blob.ListOptions{Prefix: name})
	for {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = t.b.Delete(ctx, o.Key)
		}
		if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return err
		}
	}
}
