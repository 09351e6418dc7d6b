package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/loadgen"
)

// crowd makes the buyers: who they are, and what proves it to the gateway.
type crowd struct {
	user    string   // name of the n-th buyer, with {n}
	headers []header // sent by each, with {n}, {user}, {token} and {jwt}
	listed  []listed // buyers from a file, in place of user

	jwtKey   []byte // HS256
	jwtClaim string
	jwtLife  time.Duration
	now      func() time.Time
}

type header struct{ name, value string }

type listed struct{ user, token string }

// newCrowd checks the flags.
func newCrowd(user string, headers []string, usersFile, keyFile, claim string, life time.Duration) (*crowd, error) {
	c := &crowd{user: user, jwtClaim: claim, jwtLife: life, now: time.Now}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("--header %q: want \"Name: value\"", h)
		}
		c.headers = append(c.headers, header{http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)})
	}
	if usersFile != "" {
		if err := c.readUsers(usersFile); err != nil {
			return nil, err
		}
	} else if !strings.Contains(user, "{n}") {
		return nil, fmt.Errorf("--user %q: want {n} in it, or all buyers are one", user)
	} else if what := unknown(user, "{n}"); what != "" {
		return nil, fmt.Errorf("--user %q: %s stands for nothing: want {n}, the buyer's number", user, what)
	}
	if keyFile != "" {
		key, err := os.ReadFile(keyFile)
		if err != nil {
			return nil, fmt.Errorf("--jwt-key-file: %w", err)
		}
		c.jwtKey = []byte(strings.TrimRight(string(key), "\r\n"))
	}
	for _, h := range c.headers {
		if what := unknown(h.value, placeholders...); what != "" {
			return nil, fmt.Errorf("--header %q: %s stands for nothing: want one of %s", h.name, what, strings.Join(placeholders, ", "))
		}
		if strings.Contains(h.value, "{jwt}") && len(c.jwtKey) == 0 {
			return nil, fmt.Errorf("--header %q needs a key to sign with: give --jwt-key-file", h.name)
		}
		if strings.Contains(h.value, "{token}") && len(c.listed) == 0 {
			return nil, fmt.Errorf("--header %q needs tokens: give --users with a file of them", h.name)
		}
	}
	return c, nil
}

// placeholders of a header.
var placeholders = []string{"{user}", "{n}", "{token}", "{jwt}"}

var placeholder = regexp.MustCompile(`\{[A-Za-z_]+\}`)

// unknown finds what looks like a placeholder and is none of those; "" where there is nothing.
func unknown(text string, known ...string) string {
	for _, what := range placeholder.FindAllString(text, -1) {
		if !slices.Contains(known, what) {
			return what
		}
	}
	return ""
}

// readUsers reads one buyer a line: the name and, after a tab, the token.
func (c *crowd) readUsers(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("--users: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if line := strings.TrimRight(lines.Text(), "\r"); line != "" {
			user, token, _ := strings.Cut(line, "\t")
			c.listed = append(c.listed, listed{user, token})
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("--users %s: %w", file, err)
	}
	if len(c.listed) == 0 {
		return fmt.Errorf("--users %s: no buyers in it", file)
	}
	return nil
}

// buyer makes the n-th.
func (c *crowd) buyer(n int) (loadgen.Buyer, error) {
	var who listed
	if len(c.listed) > 0 {
		who = c.listed[n%len(c.listed)]
	} else {
		who.user = strings.ReplaceAll(c.user, "{n}", strconv.Itoa(n))
	}
	b := loadgen.Buyer{User: who.user, Header: http.Header{}}
	for _, h := range c.headers {
		value := strings.NewReplacer("{n}", strconv.Itoa(n), "{user}", who.user, "{token}", who.token).Replace(h.value)
		if strings.Contains(value, "{jwt}") {
			token, err := c.sign(who.user)
			if err != nil {
				return b, err
			}
			value = strings.ReplaceAll(value, "{jwt}", token)
		}
		b.Header.Add(h.name, value)
	}
	return b, nil
}

// sign makes an HS256 token for a buyer.
func (c *crowd) sign(user string) (string, error) {
	if len(c.jwtKey) == 0 {
		return "", errors.New("no key to sign tokens with")
	}
	now := c.now()
	claims, err := json.Marshal(map[string]any{c.jwtClaim: user, "iat": now.Unix(), "exp": now.Add(c.jwtLife).Unix()})
	if err != nil {
		return "", fmt.Errorf("make token of %q: %w", user, err)
	}
	enc := base64.RawURLEncoding
	body := enc.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc.EncodeToString(claims)
	mac := hmac.New(sha256.New, c.jwtKey)
	mac.Write([]byte(body))
	return body + "." + enc.EncodeToString(mac.Sum(nil)), nil
}
