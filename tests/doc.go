// Package tests tests the store as a whole. Tests of the contract are named for rows of docs/contract.md.
package tests
