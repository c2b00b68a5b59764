package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tmc/langchaingo/memory/sqlite3"
	chat "github.com/tmc/langchaingo/schema"

	"github.com/turnstonedb/turnstone/adapters/langchaingo"
)

// histories open what is in a directory, as it is durable by default, and return a function for its conversations.
var histories = map[string]func(b *testing.B, dir string) (conversation func(id string) chat.ChatMessageHistory, end func()){
	"turnstone": func(b *testing.B, dir string) (func(string) chat.ChatMessageHistory, func()) {
		st, end := openPebble(b, dir)
		return func(id string) chat.ChatMessageHistory { return langchaingo.NewHistory(st, id) }, end
	},
	"sqlite": func(b *testing.B, dir string) (func(string) chat.ChatMessageHistory, func()) {
		db := sqlite3.NewSqliteChatMessageHistory(sqlite3.WithDBAddress(filepath.Join(dir, "db"))).DB
		return func(id string) chat.ChatMessageHistory {
				return sqlite3.NewSqliteChatMessageHistory(sqlite3.WithDB(db), sqlite3.WithSession(id), sqlite3.WithLimit(1<<20))
			}, func() {
				if err := db.Close(); err != nil {
					b.Fatal(err)
				}
			}
	},
}

// BenchmarkLangChainGo adds messages of random words to a conversation, one at a time, and reads the conversation. It reports
// what all conversations take on disk.
func BenchmarkLangChainGo(b *testing.B) {
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
				reportDisk(b, dir)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(n*of.messages)/adding.Seconds(), "adds/s")
				b.ReportMetric(reading.Seconds()*1000/float64(n), "ms/read")
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
