package stack

import "syscall"

// tieToParent has the kernel kill the child when the thread that started it ends.
func tieToParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
