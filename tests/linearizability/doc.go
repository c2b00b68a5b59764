// Package linearizability tests records, leases and queues as several workers see them that are killed, and
// whose connections are cut: 8 processes on one PostgreSQL database, 16 goroutines in one process on each
// embedded engine. Every operation on a record is checked with Porcupine (Athalye, "Porcupine: a fast
// linearizability checker in Go", 2017) against a register; of leases and queues, that nobody commits after
// a later holder did, and that every message has one effect and none is lost. Somebody who watches the session, and
// is killed with the others, sees each commit once and in order.
//
// It is a module of its own, so that the store does not require the checker.
package linearizability
