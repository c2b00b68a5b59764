package localdir

import (
	"fmt"
	"os"
)

// leadingTo returns a path that leads to an open directory, wherever it is, as long as it is open. Where /proc is not
// mounted it returns path.
func leadingTo(f *os.File, info os.FileInfo, path string) string {
	at := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if there, err := os.Stat(at); err != nil || !os.SameFile(there, info) {
		return path
	}
	return at
}
