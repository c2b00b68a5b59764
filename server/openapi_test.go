package server

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

var update = flag.Bool("update", false, "write openapi.json")

type object = map[string]any

// TestSV9_TheOpenAPIDocumentIsThatOfTheRoutes makes the document from the table of routes and the types of their
// messages. `go test ./server -run OpenAPI -update` writes it.
func TestSV9_TheOpenAPIDocumentIsThatOfTheRoutes(t *testing.T) {
	s := schemas{}
	paths := object{}
	for _, o := range operations {
		paths["/v1/"+o.name] = object{"post": s.operation(&o)}
	}
	for _, r := range streams {
		p, _ := paths[r.path].(object)
		if p == nil {
			p = object{}
			paths[r.path] = p
		}
		p[strings.ToLower(r.method)] = s.stream(&r)
	}
	for _, p := range plainRoutes {
		out := object{
			"operationId": p.name, "summary": p.summary,
			"responses": object{"200": object{"description": "The answer.", "content": object{p.mediaType: object{}}}, "default": problem()},
		}
		if p.scope == "" {
			out["security"] = []object{}
		} else {
			out["description"] = "Needs scope " + string(p.scope) + "."
		}
		paths[strings.TrimSuffix(p.path, "{$}")] = object{"get": out}
	}
	s.of(reflect.TypeFor[wire.Error]())
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Turnstone", "version": "1",
			"description": "The protocol of `turnstone serve`. docs/http.md explains it: what a document is, how bytes are in it, and which requests may be repeated.",
		},
		"paths": paths,
		"components": object{
			"schemas":         s.named(),
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
			"responses":       object{"Problem": object{"description": "A problem, as in RFC 9457.", "content": object{wire.Problem: object{"schema": ref("wire.Error")}}}},
			"parameters": object{
				"Namespace": object{"name": wire.HeaderNamespace, "in": "header", "description": "The namespace; without it the one of the empty name.", "schema": object{"type": "string"}},
				"Base":      object{"name": wire.HeaderBase, "in": "header", "description": "`" + wire.WholeBody + "`, or the id of an earlier write: then the body is a Difference from the body of that one. See docs/http.md.", "schema": object{"type": "string"}},
				"Call":      object{"name": wire.HeaderCall, "in": "header", "description": "An id of this attempt, which its answer has.", "schema": object{"type": "string", "maxLength": maxRequestID}},
				"Request":   object{"name": wire.HeaderRequest, "in": "header", "description": "The caller's id of this write. One that is repeated with it is not made again.", "schema": object{"type": "string", "maxLength": maxRequestID}},
				"Server":    object{"name": wire.HeaderServer, "in": "header", "description": "The process that the write is for, as the header of the same name in its answers says. Another one refuses the write.", "schema": object{"type": "string"}},
			},
		},
		"security": []object{{"token": []string{}}},
	}
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(openAPI, want.Bytes()) {
		t.Error("openapi.json is not that of the routes: `go test ./server -run OpenAPI -update` writes it")
	}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func problem() object { return object{"$ref": "#/components/responses/Problem"} }

func header(names ...string) []any {
	var out []any
	for _, n := range names {
		out = append(out, object{"$ref": "#/components/parameters/" + n})
	}
	return out
}

// schemas are those of named types, by name.
type schemas map[string]object

func (s schemas) named() object {
	out := object{}
	for name, schema := range s {
		out[name] = schema
	}
	return out
}

func (s schemas) operation(o *operation) object {
	params := header("Namespace", "Call")
	if o.scope != Read {
		params = header("Namespace", "Call", "Request", "Server")
		if o.out != reflect.TypeFor[wire.Item]() {
			params = header("Namespace", "Call", "Request", "Server", "Base")
			s.of(reflect.TypeFor[wire.Difference]())
		}
	}
	answer := "One document."
	if o.out == reflect.TypeFor[wire.Item]() {
		answer = "Documents, one after another. The last one has `end` or `problem`."
	}
	var out object
	if o.out != nil {
		out = object{wire.ContentType: object{"schema": s.of(o.out)}}
	} else {
		answer, out = "The bytes.", object{"application/octet-stream": object{}}
	}
	return object{
		"operationId": o.name, "summary": o.summary, "description": "Needs scope " + string(o.scope) + ".", "parameters": params,
		"requestBody": object{"content": object{wire.ContentType: object{"schema": s.of(o.in)}, "application/json": object{"schema": s.of(o.in)}}},
		"responses": object{
			"200":     object{"description": answer, "content": out},
			"default": problem(),
		},
	}
}

func (s schemas) stream(r *streamRoute) object {
	params := header("Namespace", "Call")
	for _, p := range r.query {
		params = append(params, object{"name": p.name, "in": "query", "description": p.meaning, "schema": object{"type": "string"}})
	}
	out := object{"operationId": r.name, "summary": r.summary, "description": "Needs scope " + string(r.scope) + ".", "parameters": params}
	ok := object{"description": "The answer."}
	if event := map[string]string{"watch": "commit", "changes": "change", "watch-records": "records"}[r.name]; event != "" {
		ok["description"] = "Events of the name `" + event + "`, and at the end, if it fails, one of the name `problem`, whose data are a problem."
		s.of(reflect.TypeFor[wire.Error]())
	}
	switch r.name {
	case "watch":
		ok["content"] = object{"text/event-stream": object{"schema": s.of(reflect.TypeFor[turnstone.LogEntry]())}}
	case "changes":
		ok["content"] = object{"text/event-stream": object{"schema": s.of(reflect.TypeFor[turnstone.Change]())}}
	case "watch-records":
		ok["content"] = object{"text/event-stream": object{"schema": s.of(reflect.TypeFor[turnstone.RecordUpdate]())}}
	case "read-attachment":
		ok["content"] = object{"application/octet-stream": object{}}
	case "end-upload":
		out["responses"] = object{"204": object{"description": "It is given up."}, "default": problem()}
		return out
	default:
		ok["content"] = object{wire.ContentType: object{"schema": s.of(reflect.TypeFor[wire.Progress]())}}
	}
	if r.method == "PUT" {
		out["requestBody"] = object{"content": object{"application/octet-stream": object{}}}
	}
	out["responses"] = object{"200": ok, "default": problem()}
	return out
}

// plain are types whose JSON is not what their kinds say.
var plain = map[reflect.Type]object{
	reflect.TypeFor[wire.Bytes](): {
		"description": "Bytes: text, or offset and length of the value among the bytes behind the line.",
		"oneOf":       []object{{"type": "string"}, {"type": "array", "items": object{"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}},
	},
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[graph.ID]():        {"type": "string", "description": "The id of a node: 64 hexadecimal digits."},
	reflect.TypeFor[blob.ID]():         {"type": "string", "description": "The id of a blob: 64 hexadecimal digits."},
	reflect.TypeFor[head.CommitID]():   {"type": "string", "description": "The id of a commit: 64 hexadecimal digits."},
	reflect.TypeFor[head.Revision]():   {"oneOf": []object{{"type": "integer", "minimum": 0}, {"enum": []string{"any", "zero"}}}},
	reflect.TypeFor[json.RawMessage](): {"description": "Any JSON value."},
	reflect.TypeFor[head.Retention](): {
		"description": "How many of the latest revisions can be read as they were.", "oneOf": []object{{"type": "integer", "minimum": 0}, {"const": "all"}},
	},
	reflect.TypeFor[[]byte](): {"type": []string{"string", "null"}, "contentEncoding": "base64"},
	reflect.TypeFor[turnstone.ChangeKind](): {"type": "string", "enum": []turnstone.ChangeKind{
		turnstone.ChangeCreated, turnstone.ChangeCommitted, turnstone.ChangeSaved, turnstone.ChangeTombstoned, turnstone.ChangeRenamed, turnstone.ChangeDeleted, turnstone.ChangeRecord,
	}},
	reflect.TypeFor[turnstone.RecordVersion](): {"type": "string", "description": "The version of a record: 32 hexadecimal digits, or `none` if there is none."},
	reflect.TypeFor[turnstone.Ref](): {
		"description": "A node: its id, the index of a new one, or none. Without it, the default.",
		"oneOf":       []object{{"type": "string"}, {"type": "integer", "minimum": 0}, {"const": "none"}, {"type": "null"}},
	},
}

// fields are those whose values are some texts.
var fields = map[string]object{
	"action":   {"type": "string", "enum": slices.Sorted(maps.Keys(wire.Actions)), "description": "What becomes of the record. Without it, it is set."},
	"children": {"type": "string", "enum": slices.Sorted(maps.Keys(wire.Policies)), "description": "What becomes of the sessions that were forked from it. Without it, they are kept."},
	"expect":   {"type": "string", "description": "The version that the record has to have: 32 hexadecimal digits, or `none` if there must be none. Without it, any."},
}

// of returns the schema of a type.
func (s schemas) of(t reflect.Type) object {
	if p, ok := plain[t]; ok {
		return p
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Struct:
		name := path.Base(t.PkgPath()) + "." + t.Name()
		if _, known := s[name]; !known {
			s[name] = nil // of one that is within itself
			s[name] = s.structure(t)
		}
		return ref(name)
	}
	panic("no schema of " + t.String())
}

func (s schemas) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || outer(t, name, len(f.Index)) {
			continue
		}
		properties[name] = s.of(f.Type)
		if of, some := fields[name]; some {
			properties[name] = of
		}
		if options == "" {
			required = append(required, name)
		}
	}
	out := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

// outer reports whether t has a field of that JSON name that is less deep.
func outer(t reflect.Type, name string, depth int) bool {
	for _, f := range reflect.VisibleFields(t) {
		if n, _, _ := strings.Cut(f.Tag.Get("json"), ","); n == name && len(f.Index) < depth {
			return true
		}
	}
	return false
}

// Each problem has a heading in docs/http.md, which the type of the problem leads to.
func TestSV5_EachKindOfProblemIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^#### (.*)\n\n([0-9]+)\. `).FindAllStringSubmatch(string(text), -1) {
		documented[m[1]], _ = strconv.Atoi(m[2])
	}
	kinds := map[string]int{}
	for _, k := range wire.Kinds() {
		kinds[k.Name] = k.Status
	}
	if !maps.Equal(documented, kinds) {
		t.Errorf("docs/http.md has %v\nand there are %v", documented, kinds)
	}
}
