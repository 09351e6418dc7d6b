package fences

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestVulnerabilityOfSeveralModules: one that is in Go's library and in a dependency as well is told of both, since only what is in the
// library alone does not fail.
func TestVulnerabilityOfSeveralModules(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("bash", filepath.Join("..", "..", "scripts", "vuln.sh"), "read", filepath.Join("testdata", "govulncheck.txt")).Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = `GO-2024-2687 golang.org/x/net golang.org/x/net@v0.22.0 golang.org/x/net@v0.23.0 HTTP/2 CONTINUATION flood in net/http
GO-2024-2687 go net/http@go1.22.1 net/http@go1.22.2 HTTP/2 CONTINUATION flood in net/http
GO-2024-2600 go net/http@go1.22.0 net/http@go1.22.1 Incorrect forwarding of sensitive headers and cookies on HTTP redirect in
GO-2099-0001 example.com/a example.com/a@v1.0.0 N/A Something that nobody has mended
`
	if string(out) != want {
		t.Errorf("read as:\n%swant:\n%s", out, want)
	}
}
