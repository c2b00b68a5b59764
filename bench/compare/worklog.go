package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// workingLog shows what a store of turns could reach at most. It is an append log that does the same work for each
// turn inside the measured time. It derives an id for every node (a hash of a salt, of the salted content, and of
// the node with its parent's id) and for every commit, which names the commit before. It compresses the turn's nodes
// as one block with S2, and the checkpoint part as another one. It ends each record with a CRC-32C. It has no index,
// no guard but a map of heads in memory, no deltas, no seals, and nothing that is stored once.
type workingLog struct {
	*appendLog
	mu    sync.Mutex // guards heads
	heads map[string]*logHead
}

// A logHead has the number of commits, the leaf and the last commit of a session. The commits of a session come one
// after the other.
type logHead struct {
	commits      int
	leaf, commit [32]byte
}

func openWorkingLog(dir string, bulk bool) (Store, error) {
	to, err := newLog(dir, bulk)
	if err != nil {
		return nil, err
	}
	s := &workingLog{appendLog: to, heads: map[string]*logHead{}}
	if to.at, err = s.scan(func(r *logRecord) error { return r.follow(s.head(r.Session)) }); err != nil {
		return nil, errors.Join(err, to.file.Close())
	}
	return s, nil
}

func (s *workingLog) head(session string) *logHead {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.heads[session]
	if h == nil {
		h = &logHead{}
		s.heads[session] = h
	}
	return h
}

// A logRecord is one turn.
type logRecord struct {
	Session string
	Salt    [16]byte
	Body    []byte // the bytes that the commit's id is the hash of
	Nodes   []byte // kind, key and payload of each
	Part    []byte
	HasPart bool
	nodes   []logNode
}

type logNode struct {
	id, parent         [32]byte
	kind, key, payload []byte
}

// The contexts of the hashes, as the store separates them.
var hashes = struct{ salt, content, node, commit, part *hasher }{
	newHasher("compare node salt"), newHasher("compare salted content"), newHasher("compare node"),
	newHasher("compare commit"), newHasher("compare part"),
}

type hasher struct{ pool sync.Pool }

func newHasher(context string) *hasher {
	return &hasher{sync.Pool{New: func() any { return blake3.NewDeriveKey(context) }}}
}

func (c *hasher) sum(parts ...[]byte) (sum [32]byte) {
	h := c.pool.Get().(*blake3.Hasher)
	for _, p := range parts {
		_, _ = h.Write(p)
	}
	h.Sum(sum[:0])
	h.Reset()
	c.pool.Put(h)
	return sum
}

// derive computes the id of the i-th node of a commit.
func (n *logNode) derive(salt []byte, i int, scratch []byte) []byte {
	scratch = binary.AppendUvarint(scratch[:0], uint64(i))
	own := hashes.salt.sum(salt, scratch)
	content := hashes.content.sum(own[:], n.payload)
	scratch = append(scratch[:0], n.parent[:]...)
	scratch = appendBytes(scratch, n.kind)
	scratch = appendBytes(scratch, n.key)
	scratch = append(scratch, content[:]...)
	n.id = hashes.node.sum(scratch)
	return scratch
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// cutBytes undoes appendBytes.
func cutBytes(b []byte) (first, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, errors.New("cut short")
	}
	return b[w : w+int(n)], b[w+int(n):], nil
}

type logBuffers struct{ scratch, body, nodes, packed, record []byte }

var logPool = sync.Pool{New: func() any { return &logBuffers{} }}

func (s *workingLog) Commit(session string, commits int, t *Turn) error {
	h := s.head(session)
	if h.commits != commits {
		return fmt.Errorf("conflict: %s is at %d, not %d", session, h.commits, commits)
	}
	b := logPool.Get().(*logBuffers)
	defer logPool.Put(b)
	next := b.build(session, h, t)
	if err := s.add(func(group []byte) []byte { return append(group, b.record...) }); err != nil {
		return err
	}
	*h = next
	return nil
}

// build makes the record of a turn, and returns where the session stands then.
func (b *logBuffers) build(session string, h *logHead, t *Turn) logHead {
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // it never fails
	next := logHead{commits: h.commits + 1, leaf: h.leaf}
	b.body = appendBody(b.body[:0], h, next.commits, t)
	b.nodes = b.nodes[:0]
	for i := range t.Nodes {
		n := logNode{parent: next.leaf, kind: []byte(t.Nodes[i].Kind), key: []byte(t.Nodes[i].Key), payload: t.Nodes[i].Payload}
		b.scratch = n.derive(salt[:], i, b.scratch)
		next.leaf = n.id
		b.body = append(b.body, n.id[:]...)
		b.nodes = appendBytes(appendBytes(appendBytes(b.nodes, n.kind), n.key), n.payload)
	}
	if t.Part != nil {
		sum := hashes.part.sum(t.Part)
		b.body = append(b.body, sum[:]...)
	}
	next.commit = hashes.commit.sum(b.body)

	r := append(b.record[:0], make([]byte, 4)...) // the length
	r = appendBytes(r, []byte(session))
	r = append(r, salt[:]...)
	r = appendBytes(r, b.body)
	r = b.appendPacked(r, b.nodes)
	if t.Part != nil {
		r = b.appendPacked(r, t.Part)
	}
	binary.LittleEndian.PutUint32(r, uint32(len(r)))
	b.record = binary.LittleEndian.AppendUint32(r, crc32.Checksum(r, castagnoli))
	return next
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendBody appends what a commit's id vouches for, except for the ids of its
// nodes and the hash of its part.
func appendBody(dst []byte, h *logHead, commits int, t *Turn) []byte {
	dst = append(dst, h.commit[:]...)
	dst = binary.AppendUvarint(dst, uint64(commits))
	dst = binary.AppendVarint(dst, time.Now().UnixNano())
	dst = appendBytes(dst, strconv.AppendInt([]byte("turn-"), int64(commits-1), 10))
	dst = binary.AppendUvarint(dst, uint64(len(t.Usage)))
	for _, u := range t.Usage {
		dst = appendBytes(dst, []byte(u.Model))
		dst = binary.AppendVarint(binary.AppendVarint(dst, int64(u.Input)), int64(u.Output))
	}
	return binary.AppendUvarint(dst, uint64(len(t.Nodes)))
}

func (b *logBuffers) appendPacked(dst, content []byte) []byte {
	b.packed = s2.Encode(slices.Grow(b.packed[:0], s2.MaxEncodedLen(len(content)))[:s2.MaxEncodedLen(len(content))], content)
	return appendBytes(dst, b.packed)
}

// scan calls f with every record of the file, verified as far as its checksum
// goes, and returns where they end.
func (s *workingLog) scan(f func(*logRecord) error) (end int64, err error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	data, err := io.ReadAll(s.file)
	for err == nil && end < int64(len(data)) {
		rest := data[end:]
		n := 0
		if len(rest) > 8 {
			n = int(binary.LittleEndian.Uint32(rest))
		}
		if n < 8 || n+4 > len(rest) || binary.LittleEndian.Uint32(rest[n:]) != crc32.Checksum(rest[:n], castagnoli) {
			return end, fmt.Errorf("the record at %d is damaged", end)
		}
		r := &logRecord{}
		if err = r.decode(rest[4:n]); err == nil {
			err = f(r)
		}
		if err != nil {
			err = fmt.Errorf("the record at %d: %w", end, err)
		}
		end += int64(n) + 4
	}
	return end, err
}

// decode reads a record without its length and checksum.
func (r *logRecord) decode(b []byte) error {
	session, b, err := cutBytes(b)
	if err != nil || len(b) < len(r.Salt) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	r.Session = string(session)
	b = b[copy(r.Salt[:], b):]
	if r.Body, b, err = cutBytes(b); err != nil {
		return err
	}
	for i := 0; len(b) > 0 && i < 2; i++ {
		var packed, content []byte
		if packed, b, err = cutBytes(b); err == nil {
			content, err = s2.Decode(nil, packed)
		}
		if err != nil {
			return err
		}
		if i == 0 {
			r.Nodes = content
		} else {
			r.Part, r.HasPart = content, true
		}
	}
	return nil
}

// follow checks that r is the commit after h, derives its nodes, and moves h.
func (r *logRecord) follow(h *logHead) error {
	if !bytes.HasPrefix(r.Body, h.commit[:]) {
		return fmt.Errorf("it does not follow the commit %d of %s", h.commits, r.Session)
	}
	commits, w := binary.Uvarint(r.Body[len(h.commit):])
	if w <= 0 || int(commits) != h.commits+1 {
		return fmt.Errorf("%s: commit %d follows %d", r.Session, commits, h.commits)
	}
	leaf := h.leaf
	var scratch, ids []byte
	for rest := r.Nodes; len(rest) > 0; {
		n := logNode{parent: leaf}
		var err error
		for _, field := range []*[]byte{&n.kind, &n.key, &n.payload} {
			if *field, rest, err = cutBytes(rest); err != nil {
				return err
			}
		}
		scratch = n.derive(r.Salt[:], len(r.nodes), scratch)
		leaf, r.nodes = n.id, append(r.nodes, n)
		ids = append(ids, n.id[:]...)
	}
	if r.HasPart {
		sum := hashes.part.sum(r.Part)
		ids = append(ids, sum[:]...)
	}
	if !bytes.HasSuffix(r.Body, ids) {
		return fmt.Errorf("%s: the nodes of commit %d are other ones", r.Session, commits)
	}
	*h = logHead{int(commits), leaf, hashes.commit.sum(r.Body)}
	return nil
}

// records returns the verified records of one session.
func (s *workingLog) records(session string) (out []*logRecord, err error) {
	var h logHead
	_, err = s.scan(func(r *logRecord) error {
		if r.Session != session {
			return nil
		}
		out = append(out, r)
		return r.follow(&h)
	})
	if want := s.head(session); err == nil && h != *want {
		err = fmt.Errorf("%s ends with commit %d instead of %d", session, h.commits, want.commits)
	}
	return out, err
}

func (s *workingLog) Load(session string) (p Path, err error) {
	records, err := s.records(session)
	for _, r := range records {
		for _, n := range r.nodes {
			p.Payloads, p.IDs = append(p.Payloads, n.payload), append(p.IDs, fmt.Sprintf("%x", n.id))
		}
	}
	return p, err
}

func (s *workingLog) Last(session string, n int) (Path, error) {
	p, err := s.Load(session)
	return p.last(n), err
}

func (s *workingLog) One(session, node string) ([]byte, error) {
	p, err := s.Load(session)
	return p.one(node, err)
}

func (s *workingLog) ByKey(session, key string) ([]byte, error) {
	records, err := s.records(session)
	for _, r := range records {
		for _, n := range r.nodes {
			if string(n.key) == key {
				return n.payload, err
			}
		}
	}
	return nil, errors.Join(err, os.ErrNotExist)
}

func (s *workingLog) PartAt(session string, commits int) ([]byte, error) {
	records, err := s.records(session)
	for _, r := range slices.Backward(records[:min(commits, len(records))]) {
		if r.HasPart {
			return r.Part, err
		}
	}
	return nil, errors.Join(err, os.ErrNotExist)
}

// Fork is left out: a log has nothing to share.
func (s *workingLog) Fork(string, string) error { return errLeftOut }

// appendLog is one file that groups are appended to: whoever waits while one writes and syncs is written by the next
// one (group commit).
type appendLog struct {
	file *os.File
	bulk bool

	mu      sync.Mutex // guards the fields below
	waiting []byte
	done    chan struct{} // closed when waiting is durable
	busy    bool          // somebody writes
	err     error
	at      int64
}

func newLog(dir string, bulk bool) (*appendLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &appendLog{file: f, bulk: bulk, done: make(chan struct{})}, nil
}

// add appends to the group that is written next, and returns when that is
// durable.
func (s *appendLog) add(to func(group []byte) []byte) error {
	s.mu.Lock()
	s.waiting = to(s.waiting)
	done := s.done
	if !s.busy {
		s.busy = true
		go s.lead()
	}
	s.mu.Unlock()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// lead writes the waiting bytes until none are left.
func (s *appendLog) lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		group, finished := s.waiting, s.done
		s.waiting, s.done = nil, make(chan struct{})
		s.mu.Unlock()
		err := s.write(group)
		s.mu.Lock()
		s.err = errors.Join(s.err, err)
		close(finished)
	}
	s.busy = false
}

func (s *appendLog) write(group []byte) error {
	n, err := s.file.WriteAt(group, s.at)
	s.at += int64(n)
	if err != nil || s.bulk {
		return err
	}
	return unix.Fdatasync(int(s.file.Fd()))
}

// Close cuts the file behind the last record, and closes it.
func (s *appendLog) Close() error { return errors.Join(s.file.Truncate(s.at), s.file.Close()) }
