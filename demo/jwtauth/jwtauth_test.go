package jwtauth

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/golang-jwt/jwt/v5"
)

var key = []byte("0123456789abcdef0123456789abcdef")

func provision(t *testing.T, text string) (*JWTAuth, error) {
	t.Helper()
	a := new(JWTAuth)
	if err := a.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text)); err != nil {
		return nil, err
	}
	if err := a.Provision(caddy.Context{}); err != nil {
		return nil, err
	}
	return a, a.Validate()
}

func sign(t *testing.T, m jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(m, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOnlyValidTokensNameAUser(t *testing.T) {
	a, err := provision(t, "jwtauth {\n sign_key "+base64.StdEncoding.EncodeToString(key)+"\n from_cookies session other\n}")
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(time.Hour).Unix()
	good := sign(t, jwt.SigningMethodHS256, key, jwt.MapClaims{"sub": "小明", "exp": soon})
	for name, c := range map[string]struct{ cookie, value, user string }{
		"good":              {"session", good, "小明"},
		"second cookie":     {"other", good, "小明"},
		"unknown cookie":    {"somewhere", good, ""},
		"none":              {"session", "", ""},
		"garbage":           {"session", "x.y.z", ""},
		"another key":       {"session", sign(t, jwt.SigningMethodHS256, []byte("another"), jwt.MapClaims{"sub": "u", "exp": soon}), ""},
		"another algorithm": {"session", sign(t, jwt.SigningMethodHS512, key, jwt.MapClaims{"sub": "u", "exp": soon}), ""},
		"unsigned":          {"session", sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.MapClaims{"sub": "u", "exp": soon}), ""},
		"expired":           {"session", sign(t, jwt.SigningMethodHS256, key, jwt.MapClaims{"sub": "u", "exp": int64(1)}), ""},
		"never expires":     {"session", sign(t, jwt.SigningMethodHS256, key, jwt.MapClaims{"sub": "u"}), ""},
		"no subject":        {"session", sign(t, jwt.SigningMethodHS256, key, jwt.MapClaims{"exp": soon}), ""},
		"tampered":          {"session", good[:len(good)-8] + "AAAAAAAA", ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.AddCookie(&http.Cookie{Name: c.cookie, Value: c.value})
		user, ok, err := a.Authenticate(nil, r)
		if err != nil || ok != (c.user != "") || user.ID != c.user {
			t.Errorf("%s: %q, %v, %v", name, user.ID, ok, err)
		}
	}
}

func TestWrongConfigurationIsRefused(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(key)
	for want, text := range map[string]string{
		"want base64":            "jwtauth {\n sign_key !\n from_cookies s\n}",
		"at least 16":            "jwtauth {\n from_cookies s\n}",
		"name the cookie":        "jwtauth {\n sign_key " + good + "\n}",
		"want HS256":             "jwtauth {\n sign_key " + good + "\n sign_alg none\n from_cookies s\n}",
		"unrecognized":           "jwtauth {\n from_header X\n}",
		"wrong argument count":   "jwtauth now",
		"Wrong argument count o": "jwtauth {\n sign_key a\n sign_key b\n}",
	} {
		if _, err := provision(t, text); err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
