package ui

import (
	"cmp"
	"image/color"
	"maps"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// A UsageRow is what a model was used for on a day.
type UsageRow struct {
	Day           string // as 2006-01-02
	Model         string
	Input, Output uint64 // tokens
	Cost          uint64 // in billionths of a dollar
}

// A GrowthRow is what was committed on a day, and is still there.
type GrowthRow struct {
	Day            string
	Commits, Nodes uint64
}

// A Usage says what a namespace has used, and how it grew.
type Usage struct {
	Rows   []UsageRow
	Growth []GrowthRow // by day, the first one first; days without commits are left out
}

// usageDays is how many days the chart of usage shows.
const usageDays = 30

// usage answers with the page of usage: the tokens and their cost by day and model, and the growth of the sessions.
func (v *visit) usage() error {
	u, err := v.o.Usage(v.r.Context(), v.Space)
	if err != nil {
		return err
	}
	rows := slices.Clone(u.Rows)
	sums := map[string]UsageRow{}
	for _, r := range rows {
		s := sums[r.Model]
		sums[r.Model] = UsageRow{"", r.Model, s.Input + r.Input, s.Output + r.Output, s.Cost + r.Cost}
	}
	slices.SortFunc(rows, func(a, b UsageRow) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.Model, b.Model))
	})
	growth := slices.Clone(u.Growth)
	slices.Reverse(growth)
	v.render(200, "usage", view{Title: "Usage", Body: &struct {
		Rows, Sums []UsageRow
		Days       int
		Growth     []GrowthRow
	}{rows, slices.SortedFunc(maps.Values(sums), func(a, b UsageRow) int { return cmp.Compare(a.Model, b.Model) }), usageDays, growth}})
	return nil
}

// usageChart draws the tokens of the last days, by model.
func (v *visit) usageChart() error {
	return v.chart(func(u *Usage) (*plot.Plot, error) { return drawn(u.Rows, time.Now()) })
}

// growthChart draws how many nodes there are, by the day of their commits.
func (v *visit) growthChart() error {
	return v.chart(func(u *Usage) (*plot.Plot, error) { return grown(u.Growth) })
}

// chart sends a chart as a picture.
func (v *visit) chart(draw func(*Usage) (*plot.Plot, error)) error {
	u, err := v.o.Usage(v.r.Context(), v.Space)
	if err != nil {
		return err
	}
	p, err := draw(u)
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

// grown returns a chart of the number of nodes at the end of each day.
func grown(rows []GrowthRow) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = "nodes"
	p.X.Tick.Marker = plot.TimeTicks{Format: "2006-01-02"}
	p.Y.Min, p.Y.Max = 0, 1
	if len(rows) == 0 {
		now := float64(time.Now().Unix())
		p.X.Min, p.X.Max = now-24*3600, now
		return p, nil
	}
	var points plotter.XYs
	nodes := uint64(0)
	for _, r := range rows {
		day, err := time.Parse("2006-01-02", r.Day)
		if err != nil {
			return nil, err
		}
		if len(points) == 0 {
			points = append(points, plotter.XY{X: float64(day.Unix())})
		}
		nodes += r.Nodes
		points = append(points, plotter.XY{X: float64(day.AddDate(0, 0, 1).Unix()), Y: float64(nodes)})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = palette[0], vg.Points(2)
	p.Add(line)
	return p, nil
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
