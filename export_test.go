package turnstone

import "github.com/turnstonedb/turnstone/internal/heads"

// WithFormats returns the options of a version of Turnstone that knows other formats.
func WithFormats(o Options, oldest, newest uint64) *Options {
	o.formats = &heads.Formats{Oldest: oldest, Newest: newest}
	return &o
}
