package testenv

import (
	"os/exec"
	"syscall"
)

// dieWithTest has the kernel end the server when the test binary dies without running its clean-up (a panic, -timeout,
// kill -9), so that no run leaves servers behind.
func dieWithTest(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
