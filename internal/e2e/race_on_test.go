//go:build race

package e2e

// raceFlags builds the programs as the tests are built.
var raceFlags = []string{"-race"}
