package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// drill runs the command as a user does.
func drill(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunProvesBuyersWithASignedCookie(t *testing.T) {
	const key = "a key of the shop"
	var mu sync.Mutex
	users := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"status":"confirmed"}`)
			return
		}
		user, ok := verify(r, key)
		if !ok || r.URL.Path != "/sale/42/orders" {
			w.WriteHeader(401)
			fmt.Fprint(w, `{"reason":"no_user"}`)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		users[user]++
		w.WriteHeader(202)
		fmt.Fprintf(w, `{"order_id":"o-%s","status":"queued"}`, user)
	}))
	defer srv.Close()
	record := filepath.Join(t.TempDir(), "told.jsonl")
	out, err := drill(t, "run", "--target", srv.URL, "--prefix", "/sale", "--activity", "42", "--requests", "40", "--concurrency", "4",
		"--buyers", "20", "--first", "100", "--user", "buyer-{n}", "--header", "Cookie: session={jwt}",
		"--jwt-key-file", write(t, "key", key+"\n"), "--told", record, "--json")
	if err != nil {
		t.Fatal(err, out)
	}
	var f loadgen.Figures
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		t.Fatal(err, out)
	}
	if f.Answers["queued"] != 40 || f.Final["confirmed"] != 40 || len(users) != 20 || users["buyer-100"] != 2 || users["buyer-119"] != 2 {
		t.Fatalf("figures %+v, users %v", f, users)
	}
	records, err := readTold(record, 42)
	if err != nil || len(records) != 40 || records[0].Answer != "queued" || records[0].Final != "confirmed" {
		t.Fatalf("%d records, %v, %v", len(records), records, err)
	}
}

func verify(r *http.Request, key string) (user string, ok bool) {
	c, err := r.Cookie("session")
	if err != nil {
		return "", false
	}
	i := strings.LastIndexByte(c.Value, '.')
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(c.Value[:i]))
	if base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) != c.Value[i+1:] {
		return "", false
	}
	_, payload, _ := strings.Cut(c.Value[:i], ".")
	b, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return "", false
	}
	var claims struct {
		Sub string `json:"sub"`
		Exp int64  `json:"exp"`
	}
	return claims.Sub, json.Unmarshal(b, &claims) == nil && claims.Exp > 0
}

func TestRunListsRefusalsByReason(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, reason := 409, "sold_out"
		if r.Header.Get("Authorization") != "Bearer secret-of-anna" {
			status, reason = 429, "rate_limited"
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"reason":%q}`, reason)
	}))
	defer srv.Close()
	out, err := drill(t, "run", "--target", srv.URL, "--activity", "1", "--requests", "10", "--rate", "1000",
		"--users", write(t, "users", "anna\tsecret-of-anna\nbert\tsecret-of-bert\n"), "--header", "Authorization: Bearer {token}")
	if err != nil {
		t.Fatal(err, out)
	}
	for _, want := range []string{"10 requests", "sold_out", "rate_limited", "50.0 %", "p99.9"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestWrongFlagsNameTheRemedy(t *testing.T) {
	base := []string{"run", "--target", "http://127.0.0.1:1", "--activity", "1", "--requests", "1"}
	for want, args := range map[string][]string{
		"want {n} in it":            {"--user", "anna"},
		"{user} stands for nothing": {"--user", "{n}-{user}"},
		`"X": {usr} stands for nothing: want one of {user}, {n}, {token}, {jwt}`: {"--header", "x: {n}{usr}"},
		"give --requests or --duration":                                          {"--requests", "0"},
		"give --jwt-key-file":                                                    {"--header", "Cookie: s={jwt}"},
		"give --users":                                                           {"--header", "Cookie: s={token}"},
		`want "Name: value"`:                                                     {"--header", "Cookie"},
		"a range such as 1-3":                                                    {"--quantity", "3-1"},
		"no such file":                                                           {"--users", "/nowhere/users"},
		"want none below zero":                                                   {"--rate", "-1"},
		`surplus argument "surplus"`:                                             {"surplus"},
		"--concurrency 0":                                                        {"--concurrency", "0"},
		"--max-in-flight 0":                                                      {"--max-in-flight", "0"},
		"--timeout 0s":                                                           {"--timeout", "0"},
	} {
		if out, err := drill(t, append(base[:len(base):len(base)], args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q; output %s", args, err, want, out)
		}
	}
	if _, err := drill(t, "run"); err == nil || !strings.Contains(err.Error(), "--activity int is missing") || !strings.Contains(err.Error(), "--target string is missing: address of the gateway") {
		t.Errorf("without flags: %v", err)
	}
}

// A run that cannot begin leaves the record of the run before as it is.
func TestAWrongFlagKeepsTheRecord(t *testing.T) {
	record := write(t, "told.jsonl", "the run before")
	if out, err := drill(t, "run", "--target", "127.0.0.1:1", "--activity", "1", "--requests", "1", "--told", record); err == nil {
		t.Fatalf("a target without a scheme: no error\n%s", out)
	}
	if b, err := os.ReadFile(record); err != nil || string(b) != "the run before" {
		t.Errorf("the record is now %q, %v", b, err)
	}
}

func TestQuantitiesStayInTheirRange(t *testing.T) {
	q, err := quantities("1-3")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for i := range 200 {
		seen[q(i)] = true
	}
	if len(seen) != 3 || !seen[1] || !seen[2] || !seen[3] {
		t.Fatalf("drew %v", seen)
	}
}

func TestHelpShowsBothCommands(t *testing.T) {
	out, err := drill(t, "--help")
	if err != nil || !strings.Contains(out, "run") || !strings.Contains(out, "check") || !strings.Contains(out, "I4") {
		t.Fatal(err, out)
	}
}

// TestRunFailsWhereNobodyAnswers: a dead target and a wrong log-in must not look like a drill.
func TestRunFailsWhereNobodyAnswers(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Known") == "drill-0" {
			w.WriteHeader(409)
			fmt.Fprint(w, `{"reason":"sold_out"}`)
			return
		}
		w.WriteHeader(401)
	}))
	defer login.Close()
	run := func(target string, more ...string) (string, error) {
		return drill(t, append([]string{"run", "--target", target, "--activity", "1", "--requests", "15", "--concurrency", "3"}, more...)...)
	}
	for _, c := range []struct{ target, cause string }{
		{dead.URL, "connection refused (15)"},
		{login.URL, "http 401 (15): is --header right?"},
	} {
		out, err := run(c.target)
		if err == nil || !strings.Contains(err.Error(), "answered none of 15 requests") || !strings.Contains(err.Error(), c.cause) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.cause, err)
		}
		for _, want := range []string{"15 requests in", "unknown: " + c.cause, "accepted           0         -"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: output lacks %q:\n%s", c.cause, want, out)
			}
		}
		if strings.Contains(out, " 0 µs") {
			t.Errorf("%s: a figure of nothing:\n%s", c.cause, out)
		}
	}
	// One buyer that the gateway knows is enough for a drill; the others are told under the table.
	out, err := run(login.URL, "--header", "X-Known: {user}")
	if err != nil || !strings.Contains(out, "unknown: http 401 (14): is --header right?") {
		t.Error(err, out)
	}
	if out, err := run(login.URL, "--json"); err == nil || !strings.Contains(out, `"http 401": 15`) {
		t.Error(err, out)
	}
}
