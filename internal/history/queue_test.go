package history_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestQueuesThatShareATurnSealOneAfterTheOther(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	turn := make(chan struct{}, 1)
	var queues []*history.SealQueue
	for range 3 {
		queues = append(queues, history.NewSealQueue(ctx, turn))
	}
	var now, most, done atomic.Int32
	const each = 20
	for n := range each {
		for _, q := range queues {
			q.Add(head.Incarnation{byte(n)}, func(context.Context) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(100 * time.Microsecond)
				now.Add(-1)
				done.Add(1)
			})
		}
	}
	testkit.Until(t, "all are done", func() bool { return done.Load() >= each*3 })
	if most.Load() != 1 {
		t.Errorf("%d at once", most.Load())
	}
	cancel()
	for _, q := range queues {
		q.Wait()
	}
}

func TestAQueueDoesNotWaitForAnotherThatIsStuck(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	turn, stuck, done := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	one, other := history.NewSealQueue(ctx, turn), history.NewSealQueue(ctx, turn)
	one.Add(head.Incarnation{1}, func(ctx context.Context) {
		close(stuck)
		<-ctx.Done() // as on a disk that hangs
	})
	<-stuck
	other.Add(head.Incarnation{2}, func(context.Context) { close(done) })
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
	cancel()
	one.Wait()
	other.Wait()
}

// What becomes due while its session is sealed is sealed after that, once however often it is told.
func TestAQueueSealsWhatBecomesDueMeanwhile(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	q := history.NewSealQueue(ctx, make(chan struct{}, 1))
	begun, again := make(chan struct{}), make(chan struct{})
	var times atomic.Int32
	q.Add(head.Incarnation{1}, func(context.Context) {
		close(begun)
		<-again
	})
	<-begun
	last := make(chan struct{})
	for range 3 {
		q.Add(head.Incarnation{1}, func(context.Context) { times.Add(1) })
	}
	q.Add(head.Incarnation{2}, func(context.Context) { close(last) })
	close(again)
	<-last
	if times.Load() != 1 {
		t.Errorf("sealed %d times", times.Load())
	}
	cancel()
	q.Wait()
}
