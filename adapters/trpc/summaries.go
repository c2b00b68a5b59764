package trpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

func (s *Sessions) summaryTimeout() time.Duration { return cmp.Or(s.o.SummaryTimeout, time.Minute) }

// summarizer returns the in-memory service of trpc-agent-go, which knows what to summarize. The session is in it for
// as long as the summary takes.
func (s *Sessions) summarizer(ctx context.Context, key session.Key) (*inmemory.SessionService, error) {
	options := []inmemory.ServiceOpt{
		inmemory.WithSummarizer(s.o.Summarizer), inmemory.WithAsyncSummaryNum(1),
		inmemory.WithCascadeFullSessionSummary(!s.o.BranchSummariesOnly),
		inmemory.WithSummaryJobTimeout(s.summaryTimeout()),
	}
	if s.o.SummaryFilterKeys != nil {
		options = append(options, inmemory.WithSummaryFilterAllowlist(s.o.SummaryFilterKeys...))
	}
	memory := inmemory.NewSessionService(options...)
	if _, err := memory.CreateSession(ctx, key, nil); err != nil {
		_ = memory.Close()
		return nil, err
	}
	return memory, nil
}

// checked returns the key of a session, and whether there is anything to summarize with.
func (s *Sessions) checked(of *session.Session) (key session.Key, ok bool, err error) {
	if s.o.Summarizer == nil {
		return key, false, nil
	}
	if of == nil {
		return key, false, session.ErrNilSession
	}
	key = session.Key{AppName: of.AppName, UserID: of.UserID, SessionID: of.ID}
	return key, true, key.CheckSessionKey()
}

// CreateSessionSummary summarizes a session or one of its branches, and stores the summary.
func (s *Sessions) CreateSessionSummary(ctx context.Context, of *session.Session, filterKey string, force bool) error {
	key, ok, err := s.checked(of)
	if !ok || err != nil {
		return err
	}
	return s.summarize(ctx, of, key, func(memory *inmemory.SessionService) error {
		return memory.CreateSessionSummary(ctx, of, filterKey, force)
	})
}

// EnqueueSummaryJob makes CreateSessionSummary happen later, for the session as a whole as well. If too much is to be
// done already, it does it itself. An error of what is done later is logged with the log of trpc-agent-go.
func (s *Sessions) EnqueueSummaryJob(ctx context.Context, of *session.Session, filterKey string, force bool) error {
	key, ok, err := s.checked(of)
	if !ok || err != nil {
		return err
	}
	return s.jobs.later(ctx, of, "summary", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, s.summaryTimeout()+storeTimeout)
		defer cancel()
		return s.summarize(ctx, of, key, func(memory *inmemory.SessionService) error {
			_ = memory.Close() // Then it does it itself.
			return memory.EnqueueSummaryJob(ctx, of, filterKey, force)
		})
	})
}

// summarize stores those summaries of a session that a call of f changes.
func (s *Sessions) summarize(ctx context.Context, of *session.Session, key session.Key, f func(*inmemory.SessionService) error) error {
	memory, err := s.summarizer(ctx, key)
	if err != nil {
		return err
	}
	defer memory.Close()
	before := summaries(of)
	if err := f(memory); err != nil {
		return err
	}
	changed, parts := summaries(of), map[string][]byte{}
	maps.DeleteFunc(changed, func(filterKey string, sum *session.Summary) bool { return reflect.DeepEqual(sum, before[filterKey]) })
	for filterKey, sum := range changed {
		text, err := adapter.JSON(sum)
		if err != nil {
			return err
		}
		if err := setPart(parts, summaryPart, filterKey, text); err != nil {
			return err
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if err := s.storeSummaries(ctx, key, changed, parts); err != nil {
		// The caller's session has none that is not stored: the next call makes it again.
		of.SummariesMu.Lock()
		defer of.SummariesMu.Unlock()
		for filterKey := range changed {
			if of.Summaries[filterKey] = before[filterKey]; before[filterKey] == nil {
				delete(of.Summaries, filterKey)
			}
		}
		return err
	}
	return nil
}

// storeSummaries stores summaries. It fails if the session does not have the last event of each: it was rewound meanwhile, or
// deleted and made anew.
func (s *Sessions) storeSummaries(ctx context.Context, key session.Key, sums map[string]*session.Summary, parts map[string][]byte) error {
	about := map[string]bool{} // the last events that they are about, by id
	for _, sum := range sums {
		if sum.Boundary != nil && sum.Boundary.LastEventID != "" {
			about[sum.Boundary.LastEventID] = true
		}
	}
	for {
		err := s.with(ctx, key, func(h turnstone.Persistence) error {
			i, err := h.Info(ctx)
			if err != nil {
				return err
			}
			left, last := maps.Clone(about), turnstone.Node{} // The path that has the last one has the others.
			if _, err := adapter.Newest(ctx, h, cmp.Or(i.Revision, turnstone.RevisionZero), func(n *turnstone.Node) bool {
				if id := eventID(n); left[id] {
					if delete(left, id); last.ID.IsZero() {
						last = *n
					}
				}
				return len(left) == 0
			}); err != nil {
				return err
			}
			if len(left) > 0 {
				return fmt.Errorf("trpc: session %q: the summary is about events that it has no more: %w", key.SessionID, turnstone.ErrNodeNotFound)
			}
			_, err = h.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, OnPath: last.ID, Turn: rand.Text(), Checkpoint: parts})
			return err
		})
		if !errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return err
		}
	}
}

// summaries returns a copy of the summaries of a session.
func summaries(of *session.Session) map[string]*session.Summary {
	of.SummariesMu.RLock()
	defer of.SummariesMu.RUnlock()
	out := map[string]*session.Summary{}
	for filterKey, sum := range of.Summaries {
		if sum != nil {
			out[filterKey] = sum.Clone()
		}
	}
	return out
}

// GetSessionSummaryText returns the text of a summary: that of the caller's session, or the stored one.
func (s *Sessions) GetSessionSummaryText(ctx context.Context, of *session.Session, options ...session.SummaryOption) (string, bool) {
	memory := inmemory.NewSessionService() // It knows which summary is meant.
	defer memory.Close()
	if text, ok := memory.GetSessionSummaryText(ctx, of, options...); ok || of == nil {
		return text, ok
	}
	key := session.Key{AppName: of.AppName, UserID: of.UserID, SessionID: of.ID}
	if key.CheckSessionKey() != nil {
		return "", false
	}
	stored, err := s.read(ctx, key, nil)
	if err != nil || stored == nil {
		return "", false
	}
	return memory.GetSessionSummaryText(ctx, stored, options...)
}
