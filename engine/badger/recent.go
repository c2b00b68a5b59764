package badger

import (
	"bytes"
	"sync"
)

// recent holds what was last written under keys whose values were guarded: above
// all the heads of sessions that are being committed to. Badger looks for the
// newest version of a key in every table of level 0, although it was written a
// moment ago. Everything that is written goes through the committer, which keeps
// this true.
//
// When young is full it becomes old, and what was old and not asked for since is
// forgotten.
type recent struct {
	mu         sync.RWMutex
	young, old map[string]version
	bytes      int // of young
}

// A version is a value and the timestamp from which on it is true: of the group
// that wrote it, or that read it.
type version struct {
	value []byte
	ts    uint64
}

const (
	recentBytes = 2 << 20  // of young and of old, each
	recentValue = 64 << 10 // larger ones are not worth their copy
	recentEntry = 100      // of an entry, beside key and value
)

// newest returns the value of key, if it is known. The caller must not change it.
func (r *recent) newest(key []byte) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.young[string(key)]
	if !ok {
		if v, ok = r.old[string(key)]; ok {
			r.put(key, v)
		}
	}
	return v.value, ok
}

// at returns a copy of what key holds at a timestamp, if it is known.
func (r *recent) at(ts uint64, key []byte) ([]byte, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, ok := r.young[string(key)]
	if !ok {
		v, ok = r.old[string(key)]
	}
	if !ok || v.ts > ts {
		return nil, false
	}
	return bytes.Clone(v.value), true
}

// saw remembers the value of key, which it keeps, as of a timestamp.
func (r *recent) saw(ts uint64, key, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(key, version{value, ts})
}

// wrote remembers a copy of what the group of a timestamp writes, if it remembers
// another value of key.
func (r *recent) wrote(ts uint64, key, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, young := r.young[string(key)]
	_, old := r.old[string(key)]
	if young || old {
		r.put(key, version{bytes.Clone(value), ts})
	}
}

// deleted forgets key.
func (r *recent) deleted(key []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(key)
}

// clear forgets everything.
func (r *recent) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.young, r.old, r.bytes = nil, nil, 0
}

func (r *recent) put(key []byte, v version) {
	r.drop(key)
	if len(v.value) > recentValue {
		return
	}
	if r.young == nil || r.bytes >= recentBytes {
		r.young, r.old, r.bytes = map[string]version{}, r.young, 0
	}
	r.young[string(key)] = v
	r.bytes += recentEntry + len(key) + len(v.value)
}

func (r *recent) drop(key []byte) {
	if v, ok := r.young[string(key)]; ok {
		r.bytes -= recentEntry + len(key) + len(v.value)
		delete(r.young, string(key))
	}
	delete(r.old, string(key))
}
