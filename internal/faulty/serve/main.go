// Command serve runs a server that fails as it is told to, for the tests of clients that are not written in Go. It takes
// the path of a socket, and ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/turnstonedb/turnstone/internal/faulty"
)

func main() {
	s, err := faulty.Listen(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
}
