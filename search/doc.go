// Package search finds what sessions say: words, phrases and prefixes, by the kind of a node, its session, project,
// model, agent and time, and by regular expressions.
//
// An [Index] is a file beside the store, an SQLite database. [Index.Sync] brings it to where the store is, with what
// the feed of changes tells, or else by comparing where each session stands; it goes on where it was cut off, and
// several processes may do it at once. The file can be removed at any time, and is made again.
//
// The index has the words of a node, in order, and no text. It finds candidates, and each is read in the store before
// it is a result. So a result is what the store shows at that moment, and what was tombstoned or deleted is none. When
// an index hears of that, its files lose the words as well.
//
// With an [Embedding] of the caller, it also finds what has a similar meaning: see [Index.Similar].
//
// What a fork shares with its parent is indexed once, with the parent. If the parent is deleted, it is indexed with the
// fork.
package search
