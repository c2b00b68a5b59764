package ui

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// A UsageRow is what a model was used for on a day.
type UsageRow struct {
	Day           string // as 2006-01-02
	Model         string
	Input, Output uint64 // tokens
	Cost          uint64 // in billionths of a dollar
}

// usageDays is how many days the chart of usage shows.
const usageDays = 30

// usage shows tokens and what they cost, by day and model.
func (v *visit) usage() error {
	rows, err := v.used()
	if err != nil {
		return err
	}
	sums := map[string]UsageRow{}
	for _, r := range rows {
		s := sums[r.Model]
		sums[r.Model] = UsageRow{"", r.Model, s.Input + r.Input, s.Output + r.Output, s.Cost + r.Cost}
	}
	slices.SortFunc(rows, func(a, b UsageRow) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.Model, b.Model))
	})
	v.render(200, "usage", view{Title: "Usage", Body: &struct {
		Rows, Sums []UsageRow
		Days       int
	}{rows, slices.SortedFunc(maps.Values(sums), func(a, b UsageRow) int { return cmp.Compare(a.Model, b.Model) }), usageDays}})
	return nil
}

// used returns the rows of usage, or an error if the visitor may not see them.
func (v *visit) used() ([]UsageRow, error) {
	if !v.Counts() {
		return nil, fmt.Errorf("%w: there is no usage here", wire.ErrRoute)
	}
	return v.o.Usage(v.r.Context())
}

// usageChart draws the tokens of the last days, by model.
func (v *visit) usageChart() error {
	rows, err := v.used()
	if err != nil {
		return err
	}
	p, err := drawn(rows, time.Now())
	if err != nil {
		return err
	}
	picture, err := p.WriterTo(9*vg.Inch, 3*vg.Inch, "svg")
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "image/svg+xml")
	v.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	_, _ = picture.WriteTo(v.w) // If the browser is gone, nobody sees it.
	return nil
}

// drawn returns a chart with a bar for each day, in which the models stand above each other.
func drawn(rows []UsageRow, now time.Time) (*plot.Plot, error) {
	days := make([]string, usageDays)
	at := map[string]int{}
	for i := range days {
		days[i] = now.AddDate(0, 0, i-usageDays+1).Format("2006-01-02")
		at[days[i]] = i
	}
	of := map[string]plotter.Values{}
	for _, r := range rows {
		if i, ok := at[r.Day]; ok {
			if of[r.Model] == nil {
				of[r.Model] = make(plotter.Values, usageDays)
			}
			of[r.Model][i] += float64(r.Input+r.Output) / 1e6
		}
	}
	p := plot.New()
	p.Y.Label.Text = "million tokens"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.5, usageDays-0.5, 0, 0.001
	p.Legend.Top, p.Legend.Left = true, true
	var below *plotter.BarChart
	for i, model := range slices.Sorted(maps.Keys(of)) {
		bars, err := plotter.NewBarChart(of[model], vg.Points(14))
		if err != nil {
			return nil, err
		}
		bars.LineStyle.Width = 0
		bars.Color = palette[i%len(palette)]
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(cmp.Or(model, "?"), bars)
	}
	ticks := make([]plot.Tick, 0, usageDays)
	for i, day := range days {
		t := plot.Tick{Value: float64(i)}
		if i%7 == usageDays%7 {
			t.Label = day[5:]
		}
		ticks = append(ticks, t)
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	return p, nil
}

// palette has colours that people who confuse some can tell apart (Okabe and Ito, "Color Universal Design", 2008).
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255},
	color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255},
	color.RGBA{86, 180, 233, 255},
	color.RGBA{213, 94, 0, 255},
	color.RGBA{240, 228, 66, 255},
}
