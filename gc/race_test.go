//go:build race

package gc_test

const race = true
