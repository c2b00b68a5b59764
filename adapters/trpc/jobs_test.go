package trpc

import (
	"context"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/session"
)

// Closing waits also for a job that a request does itself because too many jobs wait.
func TestTR11_CloseWaitsForTheJobsOfRequests(t *testing.T) {
	var j jobs
	ctx, of := context.Background(), &session.Session{}
	busy, full, others, begun, done := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}), false
	add := func(job func()) {
		if err := j.later(ctx, of, "job", func(context.Context) error { job(); return nil }); err != nil {
			t.Error(err)
		}
	}
	add(func() {
		close(busy)
		<-full
	})
	<-busy
	for range waiting - 1 {
		add(func() {})
	}
	add(func() { close(others) })
	go add(func() {
		close(begun)
		<-others
		time.Sleep(10 * time.Millisecond) // Whatever does not wait for this job is done by now.
		done = true
	})
	<-begun
	close(full)
	if j.close(); !done {
		t.Error("a job goes on")
	}
}
