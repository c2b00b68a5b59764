package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/DataDog/zstd"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/open"
)

// transcript reads a file of the corpus.
func transcript(file string) (data []byte, convs []importer.Conversation, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if data, err = importer.Read(context.Background(), f); err != nil {
		return nil, nil, err
	}
	convs, bad, err := importer.Parse(context.Background(), filepath.Base(file), data, nil)
	if len(bad) > 0 {
		return nil, nil, bad[0]
	}
	return data, convs, err
}

// transcripts returns the files of the corpus of a pattern.
func (r *run) transcripts(pattern string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(r.Corpus, pattern))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no %s in the corpus", pattern)
	}
	return files, err
}

// longBytes is how much a long session is at least.
const longBytes = 200_000

// longSessions imports each long Claude Code session without images into a store
// of its own, vacuums it, and compares with the file compressed by zstd -19.
func longSessions(r *run) error {
	files, err := r.transcripts("claude-*.jsonl.gz")
	if err != nil {
		return err
	}
	var ratios []float64
	for _, file := range files {
		data, convs, err := transcript(file)
		if err != nil {
			return err
		}
		if len(data) < longBytes || slices.ContainsFunc(convs, func(c importer.Conversation) bool { return hasImages(&c) }) {
			continue
		}
		zipped, err := zstd.CompressLevel(nil, data, 19)
		if err != nil {
			return err
		}
		records, taken, err := r.importAlone(convs)
		if err != nil {
			return err
		}
		r.out["sessions"]++
		r.out["raw"] += float64(len(data))
		r.out["zstd -19"] += float64(len(zipped))
		r.out["records"] += records
		r.out["bytes"] += taken
		ratio := records / float64(len(zipped))
		r.out[strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")] = ratio
		ratios = append(ratios, ratio)
	}
	if len(ratios) == 0 {
		return errors.New("no long session in the corpus")
	}
	r.out["least ratio"], r.out["greatest ratio"] = slices.Min(ratios), slices.Max(ratios)
	return nil
}

// importAlone returns the bytes of the records of a vacuumed store that has only
// convs, and what its files take.
func (r *run) importAlone(convs []importer.Conversation) (records, taken float64, err error) {
	dir, remove, err := r.fresh()
	if err != nil {
		return 0, 0, err
	}
	defer remove()
	e, err := openEngine(engineOf(r.contestant), dir, true)
	if err != nil {
		return 0, 0, err
	}
	st, err := newOurs(e)
	if err != nil {
		return 0, 0, err
	}
	stats, err := st.imported(convs, importer.Options{}, true)
	if err := errors.Join(err, st.Close()); err != nil {
		return 0, 0, err
	}
	files, err := open.Allocated(dir)
	return float64(stats.Stored.Total()), float64(files), err
}

// imported imports conversations, vacuums if asked to, and returns what is stored.
func (o *ours) imported(convs []importer.Conversation, options importer.Options, vacuum bool) (*turnstone.Stats, error) {
	for _, result := range importer.Load(ctx, o.store, convs, options) {
		if result.Outcome != importer.Imported {
			return nil, fmt.Errorf("%s: %s: %w", result.Conversation.ID, result.Outcome, result.Err)
		}
	}
	if vacuum {
		if err := o.Compact(); err != nil {
			return nil, err
		}
	}
	return o.store.Stats(ctx)
}

// prompts stores the whole prompt of each step of SWE-smith's trajectories as a
// version of one checkpoint part, and compares what the versions take with what
// the last one takes alone.
func prompts(r *run) error {
	files, err := r.transcripts("swesmith-*.gz")
	if err != nil {
		return err
	}
	for _, file := range files {
		_, convs, err := transcript(file)
		if err != nil {
			return err
		}
		if len(convs) != 1 {
			return fmt.Errorf("%s has %d conversations", file, len(convs))
		}
		every, alone, versions := promptsOf(convs[0])
		name := strings.Split(filepath.Base(file), ".")[0]
		r.out["versions of "+name] = float64(versions)
		for _, vacuum := range []bool{false, true} {
			all, err := storedParts(every, vacuum)
			if err != nil {
				return err
			}
			one, err := storedParts(alone, vacuum)
			if err != nil {
				return err
			}
			what := "committed"
			if vacuum {
				what = "vacuumed"
			}
			r.out[fmt.Sprint(name, ", ", what)] = all / one
			r.out["greatest, "+what] = max(r.out["greatest, "+what], all/one)
			r.out["bytes, "+what] += all
		}
	}
	return nil
}

// promptsOf returns a conversation that has nothing but the prompts of c, and one
// that has only the last of them.
func promptsOf(c importer.Conversation) (every, alone importer.Conversation, versions int) {
	every, alone = c, c
	every.Events, every.Outside, every.Shared = nil, nil, nil
	alone.Outside, alone.Shared = nil, nil
	for _, e := range c.Events {
		e.Payload = nil
		every.Events = append(every.Events, e)
		if prompt := e.Checkpoint["prompt"]; prompt != nil {
			versions++
			alone.Events = []importer.Event{{Kind: "assistant", Before: -1, Checkpoint: map[string][]byte{"prompt": prompt}}}
		}
	}
	return every, alone, versions
}

// storedParts returns the bytes of the records that hold checkpoint parts.
func storedParts(c importer.Conversation, vacuum bool) (float64, error) {
	e, err := openEngine("memory", "", true)
	if err != nil {
		return 0, err
	}
	st, err := newOurs(e)
	if err != nil {
		return 0, err
	}
	defer st.Close()
	stats, err := st.imported([]importer.Conversation{c}, importer.Options{BySteps: true}, vacuum)
	if err != nil {
		return 0, err
	}
	parts := stats.ByKind["blobs"].Total()
	if parts == 0 {
		return 0, errors.New("no record holds a blob: checkpoint parts are counted elsewhere")
	}
	return float64(parts), nil
}
