//go:build !linux

package stack

import "syscall"

// tieToParent: only Linux has such a tie. Elsewhere children outlive a parent that was killed by force.
func tieToParent(*syscall.SysProcAttr) {}
