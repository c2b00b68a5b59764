package localdir

import (
	"fmt"
	"os"
)

// At returns a path of the directory that leads to it wherever it is, as long as d is open: databases that take a path, and
// join it with names of files, work in this directory and in no other one. Where /proc is not mounted it is Path.
func (d *Dir) At() string {
	if d.self == nil {
		return d.Path
	}
	at := fmt.Sprintf("/proc/self/fd/%d", d.self.Fd())
	if there, err := os.Stat(at); err != nil || !os.SameFile(there, d.info) {
		return d.Path
	}
	return at
}
