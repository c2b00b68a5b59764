//go:build !unix

package main

// lockFile does nothing where there are no such locks.
func lockFile(string) (unlock func() error, err error) { return func() error { return nil }, nil }
