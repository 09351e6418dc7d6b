// Package caddymodule is seckillgate as Caddy modules: the app `seckill`, the handlers `seckill_rate_limit`,
// `seckill_gate`, `seckill_user_limit`, `seckill_reserve` and `seckill_orders`, and the Caddyfile directive `seckill`, which
// puts them together. It parses, wires and translates to HTTP; what a sale means is decided in the packages below internal/.
package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// DefaultPrefix is the path prefix of the contract's own calls.
const DefaultPrefix = "/seckill"

func init() {
	caddy.RegisterModule(App{})
	caddy.RegisterModule(RateLimit{})
	caddy.RegisterModule(Gate{})
	caddy.RegisterModule(UserLimit{})
	caddy.RegisterModule(Reserve{})
	caddy.RegisterModule(Orders{})
	caddy.RegisterModule(adminAPI{})

	httpcaddyfile.RegisterGlobalOption("seckill", parseGlobalOption)
	httpcaddyfile.RegisterDirective("seckill", parseShortcut)
	httpcaddyfile.RegisterHandlerDirective("seckill_rate_limit", parseHandler[RateLimit])
	httpcaddyfile.RegisterHandlerDirective("seckill_gate", parseHandler[Gate])
	httpcaddyfile.RegisterHandlerDirective("seckill_user_limit", parseHandler[UserLimit])
	httpcaddyfile.RegisterHandlerDirective("seckill_reserve", parseHandler[Reserve])
	httpcaddyfile.RegisterHandlerDirective("seckill_orders", parseHandler[Orders])

	// What needs no identity stands before authentication, so that a flood costs no token check; what is keyed by the
	// buyer stands after it. Every other place would silently bypass something, so nobody has to write an `order` line.
	// Repeated "before X" keeps the order of these calls.
	httpcaddyfile.RegisterDirectiveOrder("seckill_rate_limit", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterDirectiveOrder("seckill_gate", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterDirectiveOrder("seckill_user_limit", httpcaddyfile.Before, "invoke")
	httpcaddyfile.RegisterDirectiveOrder("seckill_reserve", httpcaddyfile.Before, "invoke")
	httpcaddyfile.RegisterDirectiveOrder("seckill_orders", httpcaddyfile.Before, "invoke")
	httpcaddyfile.RegisterDirectiveOrder("seckill", httpcaddyfile.Before, "invoke")
}
