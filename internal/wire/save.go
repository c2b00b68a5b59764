package wire

import "github.com/turnstonedb/turnstone/transcript"

// A Save is a transcript.Snapshot, which is to be that of a session.
type Save struct {
	Follow
	Session string `json:"session"`
	transcript.Snapshot
	Messages []Message `json:"messages,omitempty"`
	State    *[]Part   `json:"state,omitempty"` // absent if it stays as it is
}

// A Message is a transcript.Message.
type Message struct {
	transcript.Message
	Payload Bytes `json:"payload"`
}

// SaveOf returns s as a message.
func SaveOf(session string, s *transcript.Snapshot) *Save {
	out := &Save{Session: session, Snapshot: *s}
	for _, m := range s.Messages {
		out.Messages = append(out.Messages, Message{m, Bytes{Content: m.Payload}})
	}
	if s.State != nil {
		parts := partsOf(s.State)
		out.State = &parts
	}
	return out
}

// Public returns s as the snapshot that it is.
func (s *Save) Public() transcript.Snapshot {
	out := s.Snapshot
	out.Messages, out.State = nil, nil
	for _, m := range s.Messages {
		m.Message.Payload = m.Payload.Content
		out.Messages = append(out.Messages, m.Message)
	}
	if s.State != nil {
		out.State = contents(append([]Part{}, *s.State...))
	}
	return out
}

// Each implements carrier.
func (s *Save) Each(f func(*Bytes)) {
	for i := range s.Messages {
		f(&s.Messages[i].Payload)
	}
	if s.State != nil {
		eachPart(*s.State, f)
	}
}
