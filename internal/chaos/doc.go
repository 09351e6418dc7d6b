// Package chaos plays a whole sale on real servers while it kills, pauses, cuts and slows everything down at random, and then
// judges whether the sale kept its promises. `make chaos` runs it; docs/reliability.md says how to read what it prints.
//
// A run is decided by its seed: Plan draws the faults, their order, targets and lengths before anything is started. What is
// not decided is the timing of the machine, so a seed repeats a run as nearly as real servers can.
//
// The parts that need no servers (the plan, the crowd's book, the judgement of a sample, the table) are ordinary code with
// ordinary tests. The run itself is a test behind the build tag `chaos`, since it takes minutes.
package chaos
