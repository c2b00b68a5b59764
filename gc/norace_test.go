//go:build !race

package gc_test

const race = false
