// Command caddy is the demo's gateway: Caddy's standard build with the seckillgate modules, as everybody would build it,
// and a provider that verifies the sample shop's signed cookie at the edge.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/seckillgate/seckillgate/caddymodule"
	_ "github.com/seckillgate/seckillgate/demo/jwtauth"
)

func main() { caddycmd.Main() }
