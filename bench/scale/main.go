//go:build unix

// Command scale grows stores of the embedded drivers, and of the databases beneath them, side by side, and reports
// what that costs. While the stores grow it measures the bytes written for each byte, commits, reads beside writers,
// memory and files. At the end it measures closing, opening, scanning, and a vacuum beside small commits.
//
//	go run ./bench/scale -dir /mnt/disk/x -gib 10
//
// Each engine has a process of its own. They take turns: while one grows by a step, the others wait. Pairs have
// random keys of 33 bytes and values that do not compress; four writers commit 128 pairs at a time, and every eighth
// commit is followed by a Get of a random earlier key and one of an absent key.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

var (
	dir     = flag.String("dir", "", "where the stores are made, and removed again; default: a folder for temporary files")
	gib     = flag.Float64("gib", 1, "how many GiB of pairs each store gets")
	step    = flag.Float64("step", 0.25, "GiB of a turn")
	value   = flag.Int("value", 1000, "bytes of a value")
	engines = flag.String("engines", "pebble,plain-pebble,badger,plain-badger", "which engines, in which order")
	child   = flag.String("child", "", "be the process of this engine; commands come from standard input")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run() error {
	if *child != "" {
		return serve(*child, *dir, os.Stdin, os.Stdout)
	}
	root, err := os.MkdirTemp(*dir, "scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	var all []*process
	for _, name := range strings.Split(*engines, ",") {
		p, err := start(name, filepath.Join(root, name))
		if err != nil {
			return err
		}
		defer p.stop()
		all = append(all, p)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join(columns, "\t")+"\t")
	for done := 0.0; done < *gib; done += *step {
		for _, p := range all {
			var g growth
			if err := p.ask(fmt.Sprintf("grow %d", int64(min(*step, *gib-done)*(1<<30))), &g); err != nil {
				return err
			}
			fmt.Fprintln(w, p.name+"\t"+g.row()+"\t")
		}
		w.Flush()
	}
	for _, p := range all {
		var e ending
		if err := p.ask("end", &e); err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", p.name, e)
	}
	return nil
}

// A process is the child of one engine.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

func start(name, dir string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(self, "-child", name, "-dir", dir, "-value", fmt.Sprint(*value))}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// ask sends a command and reads its answer.
func (p *process) ask(command string, answer any) error {
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return json.Unmarshal(line, answer)
}

func (p *process) stop() {
	p.in.Close()
	_ = p.cmd.Wait()
}
