//go:build !race

package turnstone_test

const race = false
