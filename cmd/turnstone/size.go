package main

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// A byteSize is the value of a flag that takes a number of bytes, such as 64MiB.
type byteSize uint64

func (s *byteSize) String() string {
	if *s == 0 {
		return ""
	}
	return humanize.IBytes(uint64(*s))
}

// Set implements pflag.Value.
func (s *byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 {
		return fmt.Errorf("want a size above 0 such as 64MiB")
	}
	*s = byteSize(n)
	return nil
}

// Type implements pflag.Value.
func (s *byteSize) Type() string { return "size" }
