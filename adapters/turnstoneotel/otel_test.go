package turnstoneotel_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/turnstoneotel"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
)

var ctx = context.Background()

// work does something of everything that is measured.
func work(t *testing.T, o *turnstoneotel.Options) {
	t.Helper()
	observer, err := turnstoneotel.New(o)
	if err != nil {
		t.Fatal(err)
	}
	e := memory.New()
	defer e.Close()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{Observer: observer, NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, _, err := st.Create(ctx, turnstone.Request{ID: "private-name"})
	if err != nil {
		t.Fatal(err)
	}
	in := turnstone.Commit{
		Turn: "t", Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("12345")}},
		Checkpoint: map[string][]byte{"p": []byte("678")},
	}
	for range 2 { // the second is a replay
		if _, err := s.Commit(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: 7}); err == nil {
		t.Fatal("no conflict")
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: 1, Checkpoint: map[string][]byte{"p": []byte("679")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(ctx, turnstone.Scope{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(ctx, "private-name", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Scrub(ctx, turnstone.ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics(t *testing.T) {
	reader := metric.NewManualReader()
	work(t, &turnstoneotel.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	var got metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &got); err != nil {
		t.Fatal(err)
	}
	units, sums := map[string]string{}, map[string]int64{}
	commits := map[string]uint64{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		units[m.Name] = m.Unit
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				name := m.Name
				if hit, ok := p.Attributes.Value("turnstone.hit"); ok {
					name += " hit " + hit.String()
				}
				sums[name] += p.Value
				if strings.Contains(p.Attributes.Encoded(attribute.DefaultEncoder()), "private") {
					t.Errorf("%s names a session", m.Name)
				}
			}
		case metricdata.Gauge[float64]:
			if p := d.DataPoints; len(p) != 1 || p[0].Value <= 0 || p[0].Value > 3600 {
				t.Errorf("%s is %v", m.Name, p)
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				if op, _ := p.Attributes.Value("db.operation.name"); m.Name == "db.client.operation.duration" && op.String() == "commit" {
					kind, _ := p.Attributes.Value("error.type")
					commits[kind.String()] = p.Count
				}
			}
		}
	}
	for name, want := range map[string]int64{
		"turnstone.commit.nodes": 1, "turnstone.commit.io": 11, "turnstone.commit.replays": 1, "turnstone.commit.conflicts": 1,
		"turnstone.read.nodes": 1, "turnstone.read.io": 5, "turnstone.checkpoint.bases hit true": 1, "turnstone.checkpoint.bases hit false": 1,
	} {
		if sums[name] != want {
			t.Errorf("%s is %d, not %d", name, sums[name], want)
		}
	}
	for _, name := range []string{"turnstone.gc.deleted", "turnstone.gc.reclaimed", "turnstone.vacuum.removed", "turnstone.engine.io"} {
		if sums[name] <= 0 {
			t.Errorf("%s is %d", name, sums[name])
		}
	}
	if commits["conflict"] != 1 {
		t.Errorf("durations of commits: %v", commits)
	}
	// The package comment is the documentation: its table is true.
	source, err := os.ReadFile("otel.go")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t((?:db|turnstone)\.\S+) +(\S+) +(?:histogram|counter|gauge)`).FindAllStringSubmatch(string(source), -1) {
		table[m[1]] = m[2]
	}
	for name, unit := range units {
		if table[name] != unit {
			t.Errorf("%s in %s is documented as %q", name, unit, table[name])
		}
	}
	if len(table) != len(units) {
		t.Errorf("%d metrics are documented, %d were seen", len(table), len(units))
	}
}

func TestSpans(t *testing.T) {
	for _, engineSpans := range []bool{false, true} {
		spans := tracetest.NewSpanRecorder()
		work(t, &turnstoneotel.Options{TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)), EngineSpans: engineSpans})
		names := map[string]int{}
		byID := map[string]string{}
		for _, s := range spans.Ended() {
			names[s.Name()]++
			byID[s.SpanContext().SpanID().String()] = s.Name()
		}
		if names["turnstone.commit"] != 4 || names["turnstone.load"] != 1 || names["turnstone.gc"] != 1 || names["turnstone.vacuum"] != 1 {
			t.Errorf("%v", names)
		}
		if (names["turnstone.engine.apply"] > 0) != engineSpans {
			t.Errorf("%v", names)
		}
		failed, nested := 0, false
		for _, s := range spans.Ended() {
			if s.Status().Description == "conflict" {
				failed++
			}
			nested = nested || s.Name() == "turnstone.engine.apply" && byID[s.Parent().SpanID().String()] == "turnstone.commit"
		}
		if failed != 1 || nested != engineSpans {
			t.Errorf("%d failed, nested %v", failed, nested)
		}
	}
}
