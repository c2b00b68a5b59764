package adapter

// Brought is what the method Bring of an adapter did, which brings what a framework has in a store of its own. What was
// brought is read again from both, and compared. Bring may be called again: it goes on after it was cut off, and brings
// what has come since.
type Brought struct {
	Found     int // sessions, or snapshots
	Unchanged int // of them, since they were brought
	Brought   int // events, messages or snapshots
	// Different names what was there already and is not what the source has, which is left alone, and what can't be read or
	// stored.
	Different []string
}
