// Command compare measures Turnstone and what users would pick instead, on the
// same input in the same run:
//
//	go run -C bench/compare . -quick
//
// Every measurement runs in a process of its own; contestants take turns, in
// several rounds. It prints a table with medians and spread, checks the ratios
// that Turnstone is to reach, and with -write brings docs/benchmarks.md, its
// figures and its data up to date.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
)

func main() {
	if err := compare(); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

var full = Scale{
	Seconds: 1, Turns: 25_000, Repeats: 20, Sessions: 100_000, Hot: 1_000_000,
	Growth: []int{1e4, 1e5, 1e6, 1e7}, Steps: 340, Commits: 20_000, Many: 20_000, Busy: 10, Rewrite: 500, Slow: 300,
}

var quick = Scale{
	Seconds: 0.4, Turns: 20_000, Repeats: 5, Sessions: 3_000, Hot: 10_000,
	Growth: []int{1e4, 3e4}, Steps: 60, Commits: 2_000, Many: 2_000, Busy: 1.5, Rewrite: 50, Slow: 20,
}

func compare() error {
	var (
		isQuick  = flag.Bool("quick", false, "a look in under 3 minutes: one round, small stores")
		rounds   = flag.Int("rounds", 2, "rounds of what is measured more than once")
		only     = flag.String("run", "", "run workloads that match this regular expression")
		who      = flag.String("contestants", "", "measure contestants that match this regular expression")
		corpus   = flag.String("corpus", os.Getenv("TURNSTONE_CORPUS"), "folder of transcripts; without one, conversations are made up with the same distributions")
		dir      = flag.String("dir", "", "where stores are made and removed again: a folder on the disk to be measured (default: that of temporary files)")
		out      = flag.String("o", "", "write the results as JSON to this file")
		write    = flag.String("write", "", "bring benchmarks.md, its figures and its data in this folder up to date")
		from     = flag.String("from", "", "measure nothing: report on the results in this file")
		profiles = flag.String("profile", "", "write cpu, allocation and block profiles of commits and of a growing part to this folder")
		describe = flag.Bool("describe", false, "print the distributions of the input and end")
		cell     = flag.String("cell", "", "run one measurement (what the processes are started with)")
	)
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	switch {
	case *cell != "":
		return runCell(*cell)
	case *describe:
		templates, err := loadTemplates(*corpus)
		if err == nil {
			fmt.Print(describeInput(templates))
		}
		return err
	}
	results := &Results{}
	if *from != "" {
		data, err := os.ReadFile(*from)
		if err == nil {
			err = json.Unmarshal(data, results)
		}
		if err != nil {
			return err
		}
	} else {
		scale := full
		if *isQuick {
			scale, *rounds = quick, 1
		}
		cells, err := plan(*only, *who, *rounds, *corpus, *isQuick, scale)
		if err != nil {
			return err
		}
		if *dir != "" {
			if err := os.MkdirAll(*dir, 0o700); err != nil {
				return err
			}
		}
		// What an earlier run left would be found prepared, and taken for its own.
		if *dir, err = os.MkdirTemp(*dir, "turnstone-compare-"); err != nil {
			return err
		}
		defer os.RemoveAll(*dir)
		results.Machine = machine(*dir)
		results.Quick, results.Rounds, results.Corpus, results.Scale = *isQuick, *rounds, *corpus != "", scale
		if *profiles != "" {
			if *profiles, err = filepath.Abs(*profiles); err == nil {
				err = os.MkdirAll(*profiles, 0o755)
			}
			if err != nil {
				return err
			}
			for i := range cells {
				cells[i].Profile = *profiles
			}
		}
		if err := runAll(cells, *dir, results); err != nil {
			return err
		}
	}
	fmt.Print(results.text())
	if *out != "" {
		if err := results.save(*out); err != nil {
			return err
		}
	}
	if *write != "" {
		return results.write(*write)
	}
	return nil
}

// plan orders the cells: contestants take turns within a workload, each round
// begins with another one.
func plan(only, who string, rounds int, corpus string, quick bool, scale Scale) ([]Cell, error) {
	run, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	match, err := regexp.Compile(who)
	if err != nil {
		return nil, err
	}
	var cells []Cell
	for round := range rounds {
		for _, w := range workloads {
			if !run.MatchString(w.Name) || w.Once && round > 0 || quick && w.Full || w.Real && corpus == "" {
				continue
			}
			for i := range contestants {
				c := &contestants[(i+round*5)%len(contestants)]
				if match.MatchString(c.Name) && w.takes(c) {
					cells = append(cells, Cell{Workload: w.Name, Contestant: c.Name, Round: round, Corpus: corpus, Scale: scale})
				}
			}
		}
	}
	if len(cells) == 0 {
		return nil, errors.New("nothing to measure")
	}
	return cells, nil
}

func runAll(cells []Cell, dir string, results *Results) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	input := filepath.Join(dir, "input")
	templates, err := loadTemplates(cells[0].Corpus)
	if err == nil {
		err = saveTemplates(input, templates)
	}
	if err != nil {
		return err
	}
	bar := progressbar.NewOptions(len(cells), progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetWidth(20),
		progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	defer bar.Finish()
	begin := time.Now()
	for _, c := range cells {
		bar.Describe(fmt.Sprintf("%s, %s, round %d", c.Workload, c.Contestant, c.Round+1))
		c.Dir = filepath.Join(dir, strings.ReplaceAll(c.Contestant, " ", "-"))
		c.Input = input
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			return err
		}
		arg, err := json.Marshal(c)
		if err != nil {
			return err
		}
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(self, "-cell", string(arg))
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		start := time.Now()
		r := Result{Workload: c.Workload, Contestant: c.Contestant, Round: c.Round}
		if err := cmd.Run(); err != nil {
			// One that fails is shown as failed; the others go on.
			r.Error = strings.TrimSpace(fmt.Sprintf("%v: %s", err, firstLines(stderr.String())))
		} else if err := json.Unmarshal(stdout.Bytes(), &r.Metrics); err != nil {
			return fmt.Errorf("%s: %w", c.Workload, err)
		}
		r.Seconds = time.Since(start).Seconds()
		results.Cells = append(results.Cells, r)
		bar.Add(1)
	}
	results.Minutes = time.Since(begin).Minutes()
	return nil
}

func firstLines(s string) string {
	lines := strings.SplitN(s, "\n", 6)
	return strings.Join(lines[:min(len(lines), 5)], "; ")
}
