//go:build !race

package testkit_test

const race = false
