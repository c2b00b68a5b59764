// Command adk-host runs an agent of Google's Agent Development Kit and keeps its
// conversations in a Turnstone store.
//
// The kit's runner works on the kit's own session service, which lives in memory.
// The host replays the stored events into that service before an invocation, and
// commits the events of the invocation as one turn after it. A crash leaves whole
// turns only.
//
//	go run . -store ./data -session chat "hello"
//	go run . -store ./data -session chat "hello again"
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log"
	"strings"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
)

const app, user = "adk-host", "somebody"

func main() {
	url := flag.String("store", "mem:", "the store: "+open.Forms)
	id := flag.String("session", "chat", "the session to go on with")
	flag.Parse()
	if err := run(context.Background(), *url, *id, strings.Join(flag.Args(), " ")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, id, message string) error {
	eng, err := open.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer eng.Close()
	store, err := turnstone.Open(ctx, eng, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	reply, err := turn(ctx, store, id, message)
	if err != nil {
		return err
	}
	fmt.Println(reply)
	return nil
}

// turn runs one invocation of the agent on the stored session of that id, which
// it creates if there is none, commits the events of the invocation, and returns
// the agent's reply.
func turn(ctx context.Context, store *turnstone.Store, id, message string) (reply string, _ error) {
	stored, _, err := store.Create(ctx, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Group: app + "/" + user}})
	if err != nil {
		return "", err
	}
	state, err := stored.Load(ctx, turnstone.Scope{})
	if err != nil {
		return "", err
	}
	service := session.InMemoryService()
	if err := replay(ctx, service, id, state.Nodes); err != nil {
		return "", err
	}
	counter, err := agent.New(agent.Config{Name: "counter", Description: "counts messages", Run: count})
	if err != nil {
		return "", err
	}
	r, err := runner.New(runner.Config{AppName: app, Agent: counter, SessionService: service})
	if err != nil {
		return "", err
	}
	for e, err := range r.Run(ctx, user, id, genai.NewContentFromText(message, genai.RoleUser), agent.RunConfig{}) {
		if err != nil {
			return "", err
		}
		reply = text(e)
	}
	after, err := service.Get(ctx, &session.GetRequest{AppName: app, UserID: user, SessionID: id})
	if err != nil {
		return "", err
	}
	commit := turnstone.Commit{Expected: state.Revision}
	events := after.Session.Events()
	for i := len(state.Nodes); i < events.Len(); i++ {
		e := events.At(i)
		payload, err := json.Marshal(e)
		if err != nil {
			return "", err
		}
		commit.Turn = e.InvocationID
		commit.Nodes = append(commit.Nodes, turnstone.NewNode{Kind: e.Author, Key: e.ID, Payload: payload})
	}
	if _, err := stored.Commit(ctx, commit); err != nil {
		return "", err
	}
	return reply, nil
}

// replay makes the session of that id in service out of the stored events.
func replay(ctx context.Context, service session.Service, id string, nodes []turnstone.Node) error {
	made, err := service.Create(ctx, &session.CreateRequest{AppName: app, UserID: user, SessionID: id})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		var e session.Event
		if err := json.Unmarshal(n.Payload, &e); err != nil {
			return fmt.Errorf("node %s is no event: %w", n.ID, err)
		}
		if err := service.AppendEvent(ctx, made.Session, &e); err != nil {
			return err
		}
	}
	return nil
}

// count is the agent, in place of one with a model. It numbers the messages of
// the session with a counter in the session's state.
func count(ic agent.InvocationContext) iter.Seq2[*session.Event, error] {
	return func(yield func(*session.Event, error) bool) {
		n := 0.0 // a number of JSON
		if v, err := ic.Session().State().Get("messages"); err == nil {
			n = v.(float64)
		} else if !errors.Is(err, session.ErrStateKeyNotExist) {
			yield(nil, err)
			return
		}
		e := session.NewEvent(ic, ic.InvocationID())
		e.Author = ic.Agent().Name()
		e.Actions.StateDelta["messages"] = n + 1
		e.LLMResponse = model.LLMResponse{Content: genai.NewContentFromText(fmt.Sprintf("Message %v was %q.", n+1, ic.UserContent().Parts[0].Text), genai.RoleModel)}
		yield(e, nil)
	}
}

// text returns the text of an event.
func text(e *session.Event) string {
	var s strings.Builder
	if e.Content != nil {
		for _, p := range e.Content.Parts {
			s.WriteString(p.Text)
		}
	}
	return s.String()
}
