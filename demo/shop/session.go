package shop

import (
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// Cookie is the name of the cookie that holds the signed session.
const Cookie = "session"

// sessionLife is how long a log-in lasts.
const sessionLife = 12 * time.Hour

// maxName bounds a buyer's name, in characters.
const maxName = 24

var errName = errors.New("want 1 to 24 characters")

// cleanName accepts what the gateway accepts as a user, and less of it.
func cleanName(name string) (string, error) {
	name = strings.TrimSpace(name)
	if name == "" || !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
		return "", errName
	}
	return name, nil
}

// Token signs a session for a user (JWT, HS256), which the gateway verifies at the edge.
func Token(key []byte, user string, now time.Time) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": user, "iat": now.Unix(), "exp": now.Add(sessionLife).Unix(),
	}).SignedString(key)
}

// user is who the request's cookie says, or "".
func (s *Shop) user(r *http.Request) string {
	c, err := r.Cookie(Cookie)
	if err != nil {
		return ""
	}
	var claims jwt.RegisteredClaims
	_, err = jwt.ParseWithClaims(c.Value, &claims, func(*jwt.Token) (any, error) { return s.cfg.Key, nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithExpirationRequired())
	if err != nil {
		return ""
	}
	return claims.Subject
}

func sessionCookie(value string, life time.Duration) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // not Secure: the demo speaks plain HTTP, on loopback only
		Name: Cookie, Value: value, Path: "/", MaxAge: int(life.Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}
