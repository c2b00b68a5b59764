package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// maxEvent is the longest line of an event that is read. The largest is a commit's, with its parts and labels. Records
// are less than two megabytes of values, which are in base64.
const maxEvent = 8 << 20

// watch yields the events of a route. id returns the id of an event. When the connection is cut, watch goes on
// after the last event, or begins anew if its events have no ids.
func watch[T any](ctx context.Context, c *Client, path string, query url.Values, after string, id func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		at, enough := after, false
		for p := (patient{c: c}); !enough; {
			q := maps.Clone(query)
			if at != "" {
				q.Set("after", at)
			}
			var failed error
			err := c.do(ctx, &ask{method: "GET", path: path, query: q}, func(answer *http.Response) error {
				if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "text/event-stream" {
					return fmt.Errorf("%w: the answer is %q, and no events", errForeign, kind)
				}
				p.since = time.Now()
				failed = events(answer.Body, func(data []byte) error {
					var v T
					if err := json.Unmarshal(data, &v); err != nil {
						return fmt.Errorf("%w: %w", wire.ErrDocument, err)
					}
					at = id(v)
					if enough = !yield(v, nil); enough {
						return errEnough
					}
					return nil
				})
				return nil
			})
			var problem *wire.Error
			switch {
			case enough:
				return
			case err == nil && (errors.As(failed, &problem) || errors.Is(failed, wire.ErrDocument)):
				err = failed
			case err == nil && ctx.Err() != nil:
				err = ctx.Err()
			case err == nil:
				p.wait(ctx)
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
		}
	}
}

// watchRecords yields the records of a session, or of all.
func watchRecords(ctx context.Context, c *Client, query url.Values, prefix string) iter.Seq2[turnstone.RecordUpdate, error] {
	query.Set("prefix", prefix)
	return watch(ctx, c, "/v1/watch-records", query, "", func(turnstone.RecordUpdate) string { return "" })
}

// silence is after how long a watch on which nothing comes is taken for cut off. Servers send something every 15
// seconds.
const silence = time.Minute

var errEnough = errors.New("client: enough")

// events reads server-sent events, and calls f with the data of each, until f fails, the stream ends, or a problem
// comes.
func events(r io.ReadCloser, f func(data []byte) error) error {
	silent := time.AfterFunc(silence, func() { r.Close() })
	defer silent.Stop()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	kind, data := "", ""
	for lines.Scan() {
		silent.Reset(silence)
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			kind = value
		case "data":
			data = value
		}
		if lines.Text() != "" || data == "" {
			continue
		}
		if kind == "problem" {
			var p wire.Error
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				return fmt.Errorf("%w: %w", wire.ErrDocument, err)
			}
			return &p
		}
		if err := f([]byte(data)); err != nil {
			return err
		}
		kind, data = "", ""
	}
	return lines.Err()
}
