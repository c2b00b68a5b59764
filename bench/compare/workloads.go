package main

import (
	"fmt"
	"slices"
)

// workloads in the order in which they run and are shown.
var workloads = func() []Workload {
	var out []Workload
	for _, part := range []bool{false, true} {
		for _, n := range []int{1, 8, 64, 256} {
			w := Workload{
				Name: fmt.Sprint("commit-", n), Title: fmt.Sprintf("Commits of %d concurrent sessions", n),
				Who: everybody, Run: commits(n, part), Full: n == 8 || n == 256 || part && n != 1, Once: part && n != 64,
			}
			if n == 1 {
				w.Title = "Commits of one session"
			}
			if part {
				w.Name += "-part"
				w.Title += ", each with a checkpoint part of 200 KB that changes a little"
			}
			out = append(out, w)
		}
	}
	return append(out,
		Workload{Name: "read", Title: "Loads, parts of histories, forks", Who: readers, Run: reads},
		Workload{Name: "past", Title: "A session of many commits as it was one commit ago", Once: true, Who: named("turnstone pebble", "turnstone badger", "turnstone memory"), Run: past},
		Workload{Name: "list", Title: "Lists of 1,000 sessions", Who: readers, Run: lists(false, false)},
		Workload{Name: "list-large", Title: "Lists of many sessions, and opening", Once: true, Who: readers, Run: lists(true, false)},
		Workload{Name: "list-hot", Title: "List of 1,000 sessions and memory after many commits by 64 of them", Once: true, Who: named("turnstone pebble"), Run: lists(false, true)},
		Workload{Name: "list-large-hot", Title: "List of many sessions and memory after many commits by 64 of them", Once: true, Who: named("turnstone pebble"), Run: lists(true, true)},
		Workload{Name: "list-label", Title: "First page of the sessions with a label, of many", Once: true, Who: named("turnstone pebble", "turnstone badger", "turnstone memory", "sqlite full"), Run: labelled},
		Workload{Name: "disk-corpus", Title: "Bytes on disk: all transcripts, without images", Once: true, Who: files, Run: diskCorpus},
		Workload{Name: "disk-parts", Title: "Bytes on disk: 100 turns with the 200 KB part", Once: true, Who: files, Run: diskParts},
		Workload{Name: "disk-long", Title: "Long Claude Code sessions, each alone, beside zstd -19", Once: true, Real: true, Who: named("turnstone pebble", "turnstone badger"), Run: longSessions},
		Workload{Name: "disk-prompts", Title: "Prompts of SWE-smith as versions of a checkpoint part, beside the last one alone", Once: true, Real: true, Who: named("turnstone memory"), Run: prompts},
		Workload{Name: "growing-part", Title: "A checkpoint part that is a growing list of messages, saved whole at every step", Once: true, Who: named(
			"turnstone pebble", "turnstone badger", "turnstone memory", "langgraph sqlite full", "langgraph sqlite normal"), Run: growing},
		Workload{Name: "memory-1", Title: "Memory while one session commits", Once: true, Who: busyWho, Run: busy(1)},
		Workload{Name: "memory-64", Title: "Memory while 64 sessions commit", Once: true, Who: busyWho, Run: busy(64)},
		Workload{Name: "rewrite-new", Title: "Memory while a large new store is vacuumed, in the process that filled it", Once: true, Who: named("turnstone pebble", "turnstone badger"), Run: rewrite(true)},
		Workload{Name: "rewrite", Title: "Memory while a large store is vacuumed again after one commit", Once: true, Who: named("turnstone pebble", "turnstone badger"), Run: rewrite(false)},
		Workload{Name: "vacuum-one", Title: "Vacuum and erasure of one changed session of many", Once: true, Who: named("turnstone pebble", "turnstone badger", "turnstone memory"), Run: eraseOne},
		Workload{Name: "reclaim", Title: "Deleting half of 400 sessions, and giving the space back", Once: true, Who: readers, Run: reclaims},
		Workload{Name: "growth", Title: "As the store grows", Once: true, Who: named("turnstone pebble", "turnstone badger", "sqlite full"), Run: growth},
	)
}()

// takes reports whether w measures c.
func (w *Workload) takes(c *Contestant) bool {
	return w.Who(c) && (c.Only == "" || c.Only == w.Name)
}

func everybody(*Contestant) bool { return true }

// readers have histories and lists to read.
func readers(c *Contestant) bool { return !c.Twin && !c.Limit }

// files leave something on the disk.
func files(c *Contestant) bool {
	return c.Durable != nothing && !c.Twin
}

var busyWho = named("turnstone pebble", "turnstone badger", "sqlite full", "working log")

func named(names ...string) func(*Contestant) bool {
	return func(c *Contestant) bool { return slices.Contains(names, c.Name) }
}
