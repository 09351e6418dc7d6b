// Command caddy is Caddy's standard build plus the seckillgate modules. It is our own daily build; users build theirs
// with xcaddy (see xcaddy.sh). Keeping it in this module also keeps go.sum complete for them.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/seckillgate/seckillgate/caddymodule"
)

func main() { caddycmd.Main() }
