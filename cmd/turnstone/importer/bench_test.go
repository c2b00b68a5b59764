package importer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// written returns n lines of a conversation of Claude Code, each of about 2 kB.
func written(session string, n int) []byte {
	var b strings.Builder
	for i, l := range chain(n) {
		var text strings.Builder
		for j := range 40 {
			fmt.Fprintf(&text, "the words %d of line %d differ from others by %x, ", j, i, i*7919+j*104729)
		}
		b.WriteString(strings.Replace(strings.Replace(l, "text ", text.String(), 1), `"s1"`, `"`+session+`"`, 1) + "\n")
	}
	return []byte(b.String())
}

// onDisk opens a store on Pebble.
func onDisk(b *testing.B) *turnstone.Store {
	e, err := pebble.Open(b.TempDir()+"/store", nil)
	if err != nil {
		b.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		st.Close()
		e.Close()
	})
	return st
}

func importOf(b *testing.B, st *turnstone.Store, name string, data []byte) {
	convs, _, err := importer.Parse(ctx, name, data, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range importer.Load(ctx, st, convs, importer.Options{}) {
		if r.Err != nil || r.Commits == 0 {
			b.Fatal(r.Outcome, r.Err)
		}
	}
}

// A file of 400 kB is parsed.
func BenchmarkParse(b *testing.B) {
	data := written("s", 180)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, _, err := importer.Parse(ctx, "s.jsonl", data, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// New files of 400 kB are imported.
func BenchmarkImport(b *testing.B) {
	st := onDisk(b)
	data := written("session", 180)
	b.SetBytes(int64(len(data)))
	i := 0
	for b.Loop() {
		i++
		importOf(b, st, "s.jsonl", []byte(strings.ReplaceAll(string(data), `"session"`, fmt.Sprintf(`"s%d"`, i))))
	}
}

// A file of 400 kB grows by a line of 2 kB, and is imported again.
func BenchmarkGrow(b *testing.B) {
	st := onDisk(b)
	const begin, end = 180, 230
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		session := fmt.Sprint("s", i/(end-begin))
		lines := strings.SplitAfter(string(written(session, end)), "\n")
		if i%(end-begin) == 0 {
			importOf(b, st, "s.jsonl", []byte(strings.Join(lines[:begin], "")))
		}
		grown := []byte(strings.Join(lines[:begin+1+i%(end-begin)], ""))
		b.StartTimer()
		importOf(b, st, "s.jsonl", grown)
	}
}

// A file of 40 MB grows by a line of 2 kB, and is imported again: as follow does it, and as a whole.
func BenchmarkGrowLarge(b *testing.B) {
	for _, way := range []string{"followed", "whole"} {
		b.Run(way, func(b *testing.B) {
			st := onDisk(b)
			const begin = 18_000
			lines := strings.SplitAfter(string(written("s", begin+1000)), "\n")
			path := filepath.Join(b.TempDir(), "s.jsonl")
			f, err := os.Create(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			var tails importer.Tails
			bring := func() {
				convs, err := tails.Parse(ctx, path)
				if convs == nil && err == nil {
					var data []byte
					if data, err = os.ReadFile(path); err == nil {
						if convs, _, err = importer.Parse(ctx, path, data, nil); way == "followed" {
							convs, _, err = tails.ParseWhole(ctx, path, data, nil)
						}
					}
				}
				if err != nil {
					b.Fatal(err)
				}
				results := importer.Load(ctx, st, convs, importer.Options{})
				if r := results[0]; r.Err != nil || r.Commits == 0 {
					b.Fatal(r.Outcome, r.Err)
				}
				if way == "followed" {
					tails.Keep(results)
				}
			}
			if _, err := f.WriteString(strings.Join(lines[:begin], "")); err != nil {
				b.Fatal(err)
			}
			bring()
			for i := begin; b.Loop(); i++ {
				if _, err := f.WriteString(lines[i]); err != nil {
					b.Fatal(err)
				}
				bring()
			}
		})
	}
}
