package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"

	turnstonegenkit "github.com/turnstonedb/turnstone/adapters/genkit"
)

// genkitStores are session stores of Genkit. Its own has a file for each snapshot. Both sync what they have saved.
// They open what is in dir.
var genkitStores = map[string]func(b *testing.B, dir string) (s exp.SessionStore[any], end func()){
	"turnstone": func(b *testing.B, dir string) (exp.SessionStore[any], func()) {
		st, end := openPebble(b, dir)
		return turnstonegenkit.NewStore[any](st, turnstonegenkit.Options{}), end
	},
	"file": func(b *testing.B, dir string) (exp.SessionStore[any], func()) {
		s, err := localstore.NewFileSessionStore[any](filepath.Join(dir, "snapshots"))
		if err != nil {
			b.Fatal(err)
		}
		return s, func() {}
	},
}

// genkitTurns saves so many snapshots of a session that grows by two messages of 250 bytes each time, and returns the
// id of the last one.
func genkitTurns(b *testing.B, s exp.SessionStore[any], session string, turns int) {
	b.Helper()
	state := &exp.SessionState[any]{SessionID: session}
	parent := ""
	for i := range turns {
		state.Messages = append(state.Messages,
			ai.NewUserTextMessage(strings.Repeat(fmt.Sprintf("word %06d ", i), 21)), ai.NewModelTextMessage(strings.Repeat(fmt.Sprintf("said %06d ", i), 21)))
		saved, err := s.SaveSnapshot(ctx, "", func(*exp.SessionSnapshot[any]) (*exp.SessionSnapshot[any], error) {
			now := time.Now()
			return &exp.SessionSnapshot[any]{SessionID: session, ParentID: parent, CreatedAt: now, UpdatedAt: now, State: state}, nil
		})
		if err != nil {
			b.Fatal(err)
		}
		parent = saved.SnapshotID
	}
}

// BenchmarkGenkitSave saves the snapshots of a session of 100 turns, and reports turns a second, and what the store
// takes on disk.
func BenchmarkGenkitSave(b *testing.B) {
	const turns = 100
	for name, open := range genkitStores {
		b.Run("store="+name, func(b *testing.B) {
			dir := ""
			for b.Loop() {
				b.StopTimer()
				dir = b.TempDir()
				s, end := open(b, dir)
				b.StartTimer()
				genkitTurns(b, s, "chat", turns)
				b.StopTimer()
				end()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.N*turns)/b.Elapsed().Seconds(), "turns/s")
			reportDisk(b, dir)
		})
	}
}

// BenchmarkGenkitResume opens a store and reads the last snapshot of a session of 100 turns.
func BenchmarkGenkitResume(b *testing.B) {
	for name, open := range genkitStores {
		b.Run("store="+name, func(b *testing.B) {
			dir := b.TempDir()
			s, end := open(b, dir)
			genkitTurns(b, s, "chat", 100)
			end()
			for b.Loop() {
				s, end := open(b, dir)
				got, err := s.GetLatestSnapshot(ctx, "chat")
				if err != nil || len(got.State.Messages) != 200 {
					b.Fatal(got, err)
				}
				b.StopTimer()
				end()
				b.StartTimer()
			}
		})
	}
}
