package main

import "fmt"

// A target is a ratio that Turnstone is to reach.
type target struct {
	name  string
	want  float64
	least bool // want is the least that will do; else the most
	unit  string
	get   func(r *Results) (float64, bool)
	large bool // it is about large stores: a quick run says nothing of it
}

const us = "turnstone pebble"

// ratio of a to b.
func ratio(a float64, aok bool, b float64, bok bool) (float64, bool) {
	return a / b, aok && bok && b > 0
}

// against is a metric of one contestant divided by that of the other.
func against(workload, metric, one, other string) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		a, aok := r.value(workload, one, metric)
		b, bok := r.value(workload, other, metric)
		return ratio(a.Median, aok, b.Median, bok)
	}
}

// within is one metric of ours divided by another one of the same workload.
func within(workload, metric, other string) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		a, aok := r.value(workload, us, metric)
		b, bok := r.value(workload, us, other)
		return ratio(a.Median, aok, b.Median, bok)
	}
}

// figure is a metric of ours by itself, in so many of its units.
func figure(workload, metric string, unit float64) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		v, ok := r.value(workload, us, metric)
		return v.Median / unit, ok
	}
}

const (
	perSecond   = "commits/s"
	millisecond = 1e3 // in microseconds
	megabyte    = 1e6
)

var targets = []target{
	// Commits.
	{"durable commits/s, 64 sessions, against SQLite FULL", 7, true, "×", against("commit-64", perSecond, us, "sqlite full"), false},
	{"durable commits/s, 64 sessions, against the working log", 0.6, true, "×", against("commit-64", perSecond, us, "working log"), false},
	{"durable commits/s, one session, against the working log", 0.8, true, "×", against("commit-1", perSecond, us, "working log"), false},
	{"processor time a turn, 64 sessions, against the working log", 2, false, "×", against("commit-64", "processor µs", us, "working log"), false},
	{"p99 against p50, 64 sessions", 4, false, "×", within("commit-64", "p99 µs", "p50 µs"), false},
	{"commits/s, one session, Process, against SQLite NORMAL", 2.5, true, "×", against("commit-1", perSecond, "turnstone pebble process", "sqlite normal"), false},
	{"growing part, steps/s, against saving it whole in SQLite", 4, true, "×", against("growing-part", "steps/s", us, "langgraph sqlite full"), true},
	{"growing part, bytes on disk compacted, against the same", 203, true, "× fewer", against("growing-part", "compacted", "langgraph sqlite full", us), true},

	// Reads.
	{"opening and loading 1,000 nodes, cold, against SQLite", 2, true, "× faster", against("read", "open and cold load 1000", "sqlite full", us), false},
	{"load of 1,000 nodes, cold, against SQLite", 2, true, "× faster", against("read", "cold load 1000", "sqlite full", us), false},
	{"load of 1,000 nodes, hot, again, against SQLite", 8, true, "× faster", against("read", "load 1000", "sqlite full", us), false},
	{"load of 1,000 nodes, hot, first time, against SQLite", 4, true, "× faster", against("read", "first load 1000", "sqlite full", us), false},
	{"last 20 nodes of 10,000, against loading all", 50, true, "× faster", within("read", "load 10000", "last 20"), false},
	{"one node by id, hot, 10,000 nodes", 40, false, " µs", figure("read", "one node", 1), false},
	{"one node by key, hot, 10,000 nodes", 40, false, " µs", figure("read", "one node by key", 1), false},
	{"last 10 nodes as of one commit ago, many commits", 1, false, " ms", figure("past", "last 10", millisecond), true},
	{"checkpoint as of one commit ago, many commits", 1, false, " ms", figure("past", "checkpoint", millisecond), true},

	// Lists.
	{"first page of 1,000 sessions just created", 1, false, " ms", figure("list", "first page, just created", millisecond), false},
	{"first page of 1,000 sessions, store opened again", 1, false, " ms", figure("list", "first page", millisecond), false},
	{"first page by a label, many sessions", 5, false, " ms", figure("list-label", "first page", millisecond), true},
	{"first page of many sessions after many commits by 64 hot ones", 5, false, " ms", figure("list-large-hot", "first page", millisecond), true},
	{"the same, against 1,000 sessions", 2, false, "×", func(r *Results) (float64, bool) {
		a, aok := r.value("list-large-hot", us, "first page")
		b, bok := r.value("list-hot", us, "first page")
		return ratio(a.Median, aok, b.Median, bok)
	}, true},

	// Bytes.
	{"bytes on disk, transcripts, against their payloads", 4.5, true, "× fewer", within("disk-corpus", "raw", "bytes"), false},
	{"bytes on disk, transcripts, against SQLite", 3.5, true, "× fewer", against("disk-corpus", "bytes", "sqlite full", us), false},
	{"bytes on disk, transcripts, against JSON Lines", 3.5, true, "× fewer", against("disk-corpus", "bytes", "json lines", us), false},
	{"records of a long Claude Code session, vacuumed, against zstd -19, greatest", 1.3, false, "×", figure("disk-long", "greatest ratio", 1), false},
	{"prompts of SWE-smith, 17 versions, vacuumed, against the last", 1.2, false, "×", promptsTarget("swesmith-pandas-pr_53856"), false},
	{"prompts of SWE-smith, 22 versions, vacuumed, against the last", 1.4, false, "×", promptsTarget("swesmith-pydantic-pr_8316"), false},
	{"bytes on disk, 100 turns with the part, against SQLite", 30, true, "× fewer", against("disk-parts", "bytes", "sqlite full", us), false},

	// Upkeep, growth and memory.
	{"vacuum with one changed session of many, without the engine's", 100, false, " ms", figure("vacuum-one", "vacuum", millisecond), true},
	{"erasing one session of many, without the engine's", 100, false, " ms", figure("vacuum-one", "erase", millisecond), true},
	{"commit p50, as the store grows, largest against smallest", 1.3, false, "×", func(r *Results) (float64, bool) {
		g := r.Scale.Growth
		return within("growth", fmt.Sprint("commit at ", g[len(g)-1]), fmt.Sprint("commit at ", g[0]))(r)
	}, true},
	{"anonymous memory, one busy session", 50, false, " MB", figure("memory-1", "anonymous", megabyte), true},
	{"anonymous memory, 64 busy sessions", 100, false, " MB", figure("memory-64", "anonymous", megabyte), true},
	{"resident memory after many commits, steady", 200, false, " MB", figure("list-large-hot", "resident", megabyte), true},
	{"resident memory, rewriting a large store", 200, false, " MB", figure("rewrite", "resident", megabyte), true},
}

func promptsTarget(file string) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		v, ok := r.value("disk-prompts", "turnstone memory", file+", vacuumed")
		return v.Median, ok
	}
}
