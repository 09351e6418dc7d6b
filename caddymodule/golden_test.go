package caddymodule

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Every option that a directive's documentation names stands in a golden file, and in the reference for users.
func TestEveryOptionIsAdapted(t *testing.T) {
	golden := everything(t, "testdata/*.caddyfiletest", dashes)
	reference := everything(t, "../docs/caddyfile.md", "")
	sources := everything(t, "*.go", "")
	syntax := regexp.MustCompile(`(?m)^//\t +([a-z_]+)`)
	seen := map[string]bool{}
	for _, m := range syntax.FindAllStringSubmatch(sources, -1) {
		if seen[m[1]] {
			continue
		}
		seen[m[1]] = true
		word := regexp.MustCompile(`(?m)[\t ]` + m[1] + `($|[ \t])`)
		if !word.MatchString(golden) {
			t.Errorf("option %s is in no testdata/*.caddyfiletest", m[1])
		}
		if !word.MatchString(reference) {
			t.Errorf("option %s is not in docs/caddyfile.md", m[1])
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d options were found in the documentation of the directives: %v", len(seen), seen)
	}
}

// everything joins files, each up to where it is cut.
func everything(t *testing.T, pattern, cut string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files: %v", pattern, err)
	}
	var b strings.Builder
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		if cut != "" {
			text, _, _ = strings.Cut(text, cut)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

// clientCertificate makes a key pair for what only has to be readable, and gives the names of its files to the environment.
func clientCertificate(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for env, block := range map[string]*pem.Block{
		"SECKILL_TEST_CERT": {Type: "CERTIFICATE", Bytes: cert}, "SECKILL_TEST_KEY": {Type: "PRIVATE KEY", Bytes: private},
	} {
		file := filepath.Join(t.TempDir(), env)
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(env, file)
	}
}
