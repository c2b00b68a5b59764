package main

import (
	"fmt"
	"slices"
	"strings"
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
		Workload{Name: "list", Title: "Lists of 1,000 sessions", Who: listers, Run: lists(false, false)},
		Workload{Name: "list-large", Title: "Lists of many sessions, and opening", Once: true, Who: listers, Run: lists(true, false)},
		Workload{Name: "list-hot", Title: "List of 1,000 sessions and memory after many commits by 64 of them", Once: true, Who: named("turnstone badger"), Run: lists(false, true)},
		Workload{Name: "list-large-hot", Title: "List of many sessions and memory after many commits by 64 of them", Once: true, Who: named("turnstone badger"), Run: lists(true, true)},
		Workload{Name: "disk-corpus", Title: "Bytes on disk: all transcripts, without images", Once: true, Who: files, Run: diskCorpus},
		Workload{Name: "disk-parts", Title: "Bytes on disk: 100 turns with the 200 KB part", Once: true, Who: files, Run: diskParts},
		Workload{Name: "reclaim", Title: "Deleting half of 400 sessions, and giving the space back", Once: true, Who: readers, Run: reclaims},
		Workload{Name: "growth", Title: "As the store grows", Once: true, Who: named("turnstone badger", "turnstone pebble", "sqlite full"), Run: growth},
	)
}()

func everybody(*Contestant) bool { return true }

// readers have histories to read: the contestants that replay batches don't.
func readers(c *Contestant) bool { return !c.Replay && !c.Twin }

// listers have a list. A hundred thousand database files are left out.
func listers(c *Contestant) bool { return readers(c) && !strings.HasPrefix(c.Name, "sqlite files") }

// files leave something on the disk.
func files(c *Contestant) bool {
	return c.Durable != nothing && !c.Twin && c.Name != "preallocated log"
}

func named(names ...string) func(*Contestant) bool {
	return func(c *Contestant) bool { return slices.Contains(names, c.Name) }
}
