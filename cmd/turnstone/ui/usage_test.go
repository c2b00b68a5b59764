package ui

import (
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

// svgOf returns a chart as it is drawn.
func svgOf(t *testing.T, p *plot.Plot) string {
	t.Helper()
	w, err := p.WriterTo(4*vg.Inch, 2*vg.Inch, "svg")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "NaN") {
		t.Error("the chart has no numbers")
	}
	return out.String()
}

// The chart has a bar for each model that was used in the last days, as high as what it used, and is one without any.
func TestUI1_TheChartOfUsage(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		rows  []UsageRow
		most  float64
		names []string
	}{
		{nil, 0.001, nil},
		{[]UsageRow{{"2020-01-01", "old", 5e6, 0, 0}}, 0.001, nil},
		{[]UsageRow{{"2026-11-28", "one", 1e6, 2e6, 0}, {"2026-11-28", "two", 4e6, 0, 0}, {"2026-11-01", "one", 1e6, 0, 0}}, 7, []string{"one", "two"}},
	} {
		p, err := drawn(c.rows, now)
		if err != nil {
			t.Fatal(err)
		}
		if p.Y.Max != c.most {
			t.Errorf("%v: up to %v, want %v", c.rows, p.Y.Max, c.most)
		}
		svg := svgOf(t, p)
		for _, name := range c.names {
			if !strings.Contains(svg, ">"+name+"<") {
				t.Errorf("the chart lacks %s", name)
			}
		}
	}
}

// The chart of growth rises with what was committed, day by day, and is one without any.
func TestUI1_TheChartOfGrowth(t *testing.T) {
	for _, c := range []struct {
		rows []GrowthRow
		most float64
	}{
		{nil, 1},
		{[]GrowthRow{{"2026-11-01", 1, 5}}, 5},
		{[]GrowthRow{{"2026-11-01", 1, 5}, {"2026-11-20", 2, 7}}, 12},
	} {
		p, err := grown(c.rows)
		if err != nil {
			t.Fatal(err)
		}
		if p.Y.Max != c.most {
			t.Errorf("%v: up to %v, want %v", c.rows, p.Y.Max, c.most)
		}
		svgOf(t, p)
	}
}
