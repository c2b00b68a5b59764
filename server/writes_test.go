package server

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
)

// A write is remembered for a minute, and while a request is about it.
func TestSV2_AWriteIsRememberedWhileARequestIsAboutIt(t *testing.T) {
	w := newWrites()
	id := writeID{"", "1"}
	made := func(result []byte, err error) *written {
		n, unpin := w.pin(id)
		defer unpin()
		if first, ok := w.begin(n, 1); !first || !ok {
			t.Fatalf("%v, %v", first, ok)
		}
		w.end(n, result, err)
		return n
	}
	n := made([]byte("answer"), nil)
	again, unpin := w.pin(id)
	n.ended = time.Now().Add(-2 * rememberFor)
	if other, done := w.pin(writeID{"", "2"}); other == n {
		t.Error("another id is the same write")
	} else {
		done()
	}
	if first, ok := w.begin(again, 1); first || !ok || again != n {
		t.Error("a write that a request was about is forgotten")
	}
	if _, ok := w.begin(again, 2); ok {
		t.Error("another request is the same write")
	}
	unpin()
	made(nil, errors.New("without an effect")) // The first is forgotten now.
	made(nil, turnstone.ErrOutcomeUnknown)     // What had no effect is not remembered.
	if n, unpin := w.pin(id); true {
		if _, err := w.result(n); !errors.Is(err, turnstone.ErrOutcomeUnknown) || !n.begun {
			t.Errorf("%v", err)
		}
		unpin()
	}
	_, unpin = w.pin(writeID{"", "3"})
	unpin()
	if len(w.byID) != 1 {
		t.Errorf("%d writes are remembered", len(w.byID))
	}
}

// The answers that are remembered have a limit. One that is forgotten before its write is an unknown outcome.
func TestSV2_AnAnswerThatIsForgottenIsAnUnknownOutcome(t *testing.T) {
	w := newWrites()
	var first *written
	for i := range 5 {
		n, unpin := w.pin(writeID{"", string(rune('a' + i))})
		w.begin(n, 0)
		w.end(n, bytes.Repeat([]byte("x"), rememberBytes/4), nil)
		unpin()
		if i == 0 {
			first = n
		}
	}
	if _, err := w.result(first); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	if w.bytes > rememberBytes {
		t.Errorf("%d bytes are remembered", w.bytes)
	}
}
