//go:build race

package testscale_test

const race = true
