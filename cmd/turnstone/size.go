package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/engine"

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

// A memoryFlag is the value of a flag that takes the size of a Memory.
type memoryFlag struct{ to **engine.MemoryBudget }

func (m memoryFlag) String() string {
	if m.to == nil || *m.to == nil {
		return ""
	}
	return humanize.IBytes(uint64((*m.to).Bytes()))
}

// Set implements pflag.Value.
func (m memoryFlag) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n < engine.MinMemory || n > math.MaxInt {
		return fmt.Errorf("want a size of at least 32MiB")
	}
	*m.to = engine.NewMemoryBudget(int(n))
	return nil
}

// Type implements pflag.Value.
func (m memoryFlag) Type() string { return "size" }

// An age is the value of a flag that takes a time such as 36h or 30d: days have 24 hours.
type age time.Duration

func (a *age) String() string {
	if *a == 0 {
		return ""
	}
	if day := age(24 * time.Hour); *a%day == 0 {
		return fmt.Sprintf("%dd", *a/day)
	}
	return time.Duration(*a).String()
}

// Set implements pflag.Value.
func (a *age) Set(text string) error {
	const day = 24 * time.Hour
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * day
	}
	if err != nil || d <= 0 {
		return errors.New("want a time above 0 such as 36h or 30d")
	}
	*a = age(d)
	return nil
}

// Type implements pflag.Value.
func (a *age) Type() string { return "time" }
