// Package jwtauth is a Caddy authentication provider for signed cookies: it verifies a JSON Web Token at the edge, so that
// asking who the buyer is costs no call to the shop. It is a small part of what the plugin github.com/ggicci/caddy-jwt
// does, with the same directive for that part, so a Caddyfile made for one works with the other.
package jwtauth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	"github.com/golang-jwt/jwt/v5"
)

func init() {
	caddy.RegisterModule(JWTAuth{})
	httpcaddyfile.RegisterHandlerDirective("jwtauth", parse)
	httpcaddyfile.RegisterDirectiveOrder("jwtauth", httpcaddyfile.Before, "basic_auth")
}

// JWTAuth accepts requests with a valid token and makes its subject {http.auth.user.id}.
type JWTAuth struct {
	// SignKey is the key that tokens are signed with, in base64. Placeholders such as {env.JWT_KEY} keep it out of the
	// configuration.
	SignKey string `json:"sign_key"`

	// SignAlgorithm is the one algorithm that is accepted: HS256, HS384 or HS512. Default: HS256.
	SignAlgorithm string `json:"sign_alg,omitempty"`

	// FromCookies names the cookies that may hold the token; the first that does is used.
	FromCookies []string `json:"from_cookies"`

	// UserClaims names the claims that may hold the user's id; the first that does is used. Default: sub.
	UserClaims []string `json:"user_claims,omitempty"`

	key    []byte
	parser *jwt.Parser
}

// CaddyModule returns the Caddy module information.
func (JWTAuth) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.authentication.providers.seckill_demo_jwt",
		New: func() caddy.Module { return new(JWTAuth) },
	}
}

// Provision reads the key.
func (a *JWTAuth) Provision(caddy.Context) error {
	if a.SignAlgorithm == "" {
		a.SignAlgorithm = "HS256"
	}
	if len(a.UserClaims) == 0 {
		a.UserClaims = []string{"sub"}
	}
	key, err := base64.StdEncoding.DecodeString(caddy.NewReplacer().ReplaceKnown(a.SignKey, ""))
	if err != nil {
		return fmt.Errorf("sign_key: want base64: %w", err)
	}
	a.key = key
	a.parser = jwt.NewParser(jwt.WithValidMethods([]string{a.SignAlgorithm}), jwt.WithExpirationRequired(), jwt.WithLeeway(time.Minute))
	return nil
}

// Validate refuses what would let everybody in, or nobody.
func (a *JWTAuth) Validate() error {
	switch a.SignAlgorithm {
	case "HS256", "HS384", "HS512":
	default:
		return fmt.Errorf("sign_alg %q: want HS256, HS384 or HS512", a.SignAlgorithm)
	}
	if len(a.key) < 16 {
		return fmt.Errorf("sign_key: %d bytes, want at least 16", len(a.key))
	}
	if len(a.FromCookies) == 0 {
		return errors.New("from_cookies: name the cookie that holds the token")
	}
	return nil
}

// Authenticate implements caddyauth.Authenticator. A missing or wrong token is not an error, only no user.
func (a *JWTAuth) Authenticate(_ http.ResponseWriter, r *http.Request) (caddyauth.User, bool, error) {
	for _, name := range a.FromCookies {
		c, err := r.Cookie(name)
		if err != nil {
			continue
		}
		claims := jwt.MapClaims{}
		if _, err := a.parser.ParseWithClaims(c.Value, claims, func(*jwt.Token) (any, error) { return a.key, nil }); err != nil {
			continue
		}
		for _, claim := range a.UserClaims {
			if id, ok := claims[claim].(string); ok && id != "" {
				return caddyauth.User{ID: id}, true, nil
			}
		}
	}
	return caddyauth.User{}, false, nil
}

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	jwtauth {
//	    sign_key     <base64>
//	    sign_alg     HS256|HS384|HS512
//	    from_cookies <name…>
//	    user_claims  <name…>
//	}
func (a *JWTAuth) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		var one *string
		var many *[]string
		switch d.Val() {
		case "sign_key":
			one = &a.SignKey
		case "sign_alg":
			one = &a.SignAlgorithm
		case "from_cookies":
			many = &a.FromCookies
		case "user_claims":
			many = &a.UserClaims
		default:
			return d.Errf("unrecognized subdirective %s", d.Val())
		}
		switch args := d.RemainingArgs(); {
		case one != nil && len(args) == 1 && *one == "":
			*one = args[0]
		case many != nil && len(args) > 0 && len(*many) == 0:
			*many = args
		default:
			return d.ArgErr()
		}
	}
	a.SignAlgorithm = strings.ToUpper(a.SignAlgorithm)
	return nil
}

func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	a := new(JWTAuth)
	if err := a.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return caddyauth.Authentication{
		ProvidersRaw: caddy.ModuleMap{"seckill_demo_jwt": caddyconfig.JSON(a, nil)},
	}, nil
}

var (
	_ caddy.Provisioner       = (*JWTAuth)(nil)
	_ caddy.Validator         = (*JWTAuth)(nil)
	_ caddyauth.Authenticator = (*JWTAuth)(nil)
	_ caddyfile.Unmarshaler   = (*JWTAuth)(nil)
)
