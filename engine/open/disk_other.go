//go:build !unix

package open

import "errors"

// Allocated is not known on this system.
func Allocated(string) (int64, error) {
	return 0, errors.New("allocated bytes are not known on this system")
}
