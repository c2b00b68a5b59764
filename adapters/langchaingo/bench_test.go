package langchaingo_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tmc/langchaingo/memory/sqlite3"
	"github.com/tmc/langchaingo/schema"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/langchaingo"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// histories open what is in a directory, as it is durable by default, and return a function for its conversations.
var histories = map[string]func(b *testing.B, dir string) (conversation func(id string) schema.ChatMessageHistory, end func()){
	"turnstone": func(b *testing.B, dir string) (func(string) schema.ChatMessageHistory, func()) {
		e, err := pebble.Open(dir, nil)
		if err != nil {
			b.Fatal(err)
		}
		st, err := turnstone.Open(ctx, e, nil)
		if err != nil {
			b.Fatal(err)
		}
		return func(id string) schema.ChatMessageHistory { return langchaingo.NewHistory(st.Factory(), id) }, func() {
			if err := st.Close(); err != nil {
				b.Fatal(err)
			}
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
		}
	},
	"sqlite": func(b *testing.B, dir string) (func(string) schema.ChatMessageHistory, func()) {
		db := sqlite3.NewSqliteChatMessageHistory(sqlite3.WithDBAddress(filepath.Join(dir, "db"))).DB
		return func(id string) schema.ChatMessageHistory {
				return sqlite3.NewSqliteChatMessageHistory(sqlite3.WithDB(db), sqlite3.WithSession(id), sqlite3.WithLimit(1<<20))
			}, func() {
				if err := db.Close(); err != nil {
					b.Fatal(err)
				}
			}
	},
}

// BenchmarkConversation adds messages of random words to a conversation, one at a time, and reads all of them.
func BenchmarkConversation(b *testing.B) {
	for _, of := range []struct{ messages, bytes int }{{30, 360}, {3000, 360}, {300, 36_000}} {
		for name, opened := range histories {
			b.Run(fmt.Sprintf("messages=%d/bytes=%d/history=%s", of.messages, of.bytes, name), func(b *testing.B) {
				dir := b.TempDir()
				conversation, end := opened(b, dir)
				var adding, reading time.Duration
				n := 0
				for ; b.Loop(); n++ {
					texts := randomTexts(of.messages, of.bytes)
					h := conversation(fmt.Sprint(n))
					begun := time.Now()
					for i, text := range texts {
						add := h.AddUserMessage
						if i%2 == 1 {
							add = h.AddAIMessage
						}
						if err := add(ctx, text); err != nil {
							b.Fatal(err)
						}
					}
					adding += time.Since(begun)
					begun = time.Now()
					if all, err := h.Messages(ctx); err != nil || len(all) != of.messages {
						b.Fatal(len(all), err)
					}
					reading += time.Since(begun)
				}
				end()
				size, err := open.Allocated(dir)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(n*of.messages)/adding.Seconds(), "adds/s")
				b.ReportMetric(reading.Seconds()*1000/float64(n), "ms/read")
				b.ReportMetric(float64(size)/float64(n)/1024, "KiB")
			})
		}
	}
}

// randomTexts returns texts of random words: stores that compress find as little in them as in prose.
func randomTexts(n, bytes int) []string {
	words := make([]string, 2000)
	for i := range words {
		letters := make([]byte, 2+rand.IntN(9))
		for k := range letters {
			letters[k] = byte('a' + rand.IntN(26))
		}
		words[i] = string(letters)
	}
	texts := make([]string, n)
	for i := range texts {
		var text strings.Builder
		for text.Len() < bytes {
			text.WriteString(words[rand.IntN(len(words))] + " ")
		}
		texts[i] = text.String()[:bytes]
	}
	return texts
}
