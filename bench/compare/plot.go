package main

import (
	"fmt"
	"image/color"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

var (
	own    = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	others = color.RGBA{R: 0xb0, G: 0xb0, B: 0xb0, A: 0xff}
	limit  = color.RGBA{R: 0xe0, G: 0xc0, B: 0x80, A: 0xff}
	lines  = []color.Color{own, color.RGBA{R: 0x5b, G: 0xa3, B: 0x5b, A: 0xff}, color.RGBA{R: 0xc0, G: 0x50, B: 0x50, A: 0xff}}
)

// plot draws the figures in dir and returns their files by heading.
func (r *Results) plot(dir string) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range []struct {
		workload, note, metric, axis string
		scale                        float64
	}{
		{"commit-1", "", "p50 µs", "p50 in ms", 1e-3},
		{"commit-64", "", "commits/s", "commits/s", 1},
		{"commit-256", "", "commits/s", "commits/s", 1},
		{"commit-64-part", "", "commits/s", "commits/s", 1},
		{"read", "hot", "load 1000", "1,000 nodes, ms", 1e-3},
		{"read", "after dropping caches and opening again", "cold load 1000", "1,000 nodes, ms", 1e-3},
		{"disk-corpus", "", "bytes", "MB", 1e-6},
		{"disk-parts", "", "bytes", "MB", 1e-6},
		{"list-large-hot", "", "resident", "resident, MB", 1e-6},
	} {
		heading := heading(table{workload: f.workload, note: f.note})
		name := strings.ReplaceAll(f.workload+" "+f.metric, " ", "-")
		name = strings.NewReplacer("/", "-per-", "µ", "u").Replace(name) + ".svg"
		drawn, err := r.bars(filepath.Join(dir, name), heading, f.workload, f.metric, f.axis, f.scale)
		if err != nil {
			return nil, err
		}
		if drawn {
			out[heading] = name
		}
	}
	drawn, err := r.growth(filepath.Join(dir, "growth.svg"))
	if drawn {
		out[title("growth")] = "growth.svg"
	}
	return out, err
}

// bars draws a bar for each contestant, the first on top.
func (r *Results) bars(file, heading, workload, metric, axis string, scale float64) (bool, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.X.Min = heading, axis, 0
	var names []string
	for _, c := range slices.Backward(contestants) {
		v, ok := r.value(workload, c.Name, metric)
		if !ok {
			continue
		}
		bar, err := plotter.NewBarChart(plotter.Values{v.Median * scale}, vg.Points(12))
		if err != nil {
			return false, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(len(names)), 0
		bar.Color = others
		if strings.HasPrefix(c.Name, "turnstone") {
			bar.Color = own
		} else if strings.HasSuffix(c.Name, " log") {
			bar.Color = limit
		}
		p.Add(bar)
		names = append(names, c.Name)
	}
	if len(names) < 2 {
		return false, nil
	}
	p.NominalY(names...)
	return true, p.Save(vg.Points(560), vg.Points(float64(70+20*len(names))), file)
}

// growth draws the time of a commit over the nodes of the store.
func (r *Results) growth(file string) (bool, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Commit of one session as the store grows", "nodes in the store", "p50 in ms"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 0}
	p.Y.Min = 0
	drawn := 0
	for _, c := range contestants {
		var points plotter.XYs
		for _, n := range r.Scale.Growth {
			if v, ok := r.value("growth", c.Name, fmt.Sprint("commit at ", n)); ok {
				points = append(points, plotter.XY{X: float64(n), Y: v.Median / 1000})
			}
		}
		if len(points) < 2 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return false, err
		}
		line.Color = lines[drawn%len(lines)]
		dots.Color = line.Color
		p.Add(line, dots)
		p.Legend.Add(c.Name, line, dots)
		drawn++
	}
	if drawn == 0 {
		return false, nil
	}
	p.Legend.Top = false
	return true, p.Save(vg.Points(560), vg.Points(280), file)
}
