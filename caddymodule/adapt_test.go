package caddymodule

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

var update = flag.Bool("update", false, "write the JSON parts of testdata/*.caddyfiletest anew")

const dashes = "\n----------\n"

// adapt turns a Caddyfile into indented JSON.
func adapt(caddyfile string) (string, error) {
	raw, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return "", err
	}
	_ = warnings // about formatting only
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "\t"); err != nil {
		return "", err
	}
	return b.String(), nil
}

// validate does what `caddy validate` does.
func validate(t *testing.T, config string) error {
	t.Helper()
	var cfg caddy.Config
	if err := caddy.StrictUnmarshalJSON([]byte(config), &cfg); err != nil {
		return err
	}
	if cfg.Logging == nil {
		cfg.Logging = quiet()
	}
	return caddy.Validate(&cfg)
}

// Each file is a Caddyfile, a line of dashes, and the JSON that it stands for. All of them must validate with no server up.
func TestAdapt(t *testing.T) {
	clientCertificate(t)
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, _ := strings.Cut(string(raw), dashes)
			got, err := adapt(caddyfile + "\n")
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(caddyfile+dashes+got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got+"\n" != want {
				t.Errorf("got\n%s\nwant\n%s\n(go test -run TestAdapt -update writes it anew)", got, want)
			}
			if err := validate(t, got); err != nil {
				t.Errorf("the result does not validate: %v", err)
			}
		})
	}
}

// The root Caddyfile is what users start from: it validates with no server up, and is formatted.
func TestSampleCaddyfile(t *testing.T) {
	raw, err := os.ReadFile("../Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	got, err := adapt(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, got); err != nil {
		t.Error(err)
	}
	_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		t.Errorf("line %d: %s", w.Line, w.Message)
	}
}

const global = "{\n\tseckill {\n\t\tredis 127.0.0.1:6379\n\t\tkafka 127.0.0.1:9092\n\t}\n}\n"

func site1(lines ...string) string {
	return global + ":8080 {\n" + strings.Join(lines, "\n") + "\n}\n"
}

// permute calls fn with every order of lines.
func permute(lines []string, fn func([]string)) {
	var rec func(head, rest []string)
	rec = func(head, rest []string) {
		if len(rest) == 0 {
			fn(head)
			return
		}
		for i := range rest {
			next := slices.Delete(slices.Clone(rest), i, i+1)
			rec(append(slices.Clone(head), rest[i]), next)
		}
	}
	rec(nil, lines)
}

// E76: whatever the order of the lines, the chain is the same.
func TestE76OrderOfLinesDoesNotMatter(t *testing.T) {
	for name, lines := range map[string][]string{
		"shortcut": {
			"rate_limit token_bucket 10000/s burst 2000",
			"rate_limit token_bucket 5/s key {client_ip}",
			"authenticate {\n basic_auth {\n bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}\n}",
			"user {http.auth.user.id}",
			"user_window 5s",
		},
		"by hand": {
			"seckill_rate_limit token_bucket 10000/s",
			"seckill_gate",
			"basic_auth {\n bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}",
			"seckill_user_limit 5s",
			"seckill_reserve {\n user {http.auth.user.id}\n}",
			"seckill_orders {\n user {http.auth.user.id}\n}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wrap := range []string{"", "handle", "handle /seckill/*", "handle_path /shop/*"} {
				first, n := "", 0
				permute(lines, func(lines []string) {
					n++
					if n%7 != 1 && wrap != "" { // a sample will do
						return
					}
					body := lines
					if name == "shortcut" {
						body = []string{"seckill {\n" + strings.Join(lines, "\n") + "\n}"}
					}
					body = append(slices.Clone(body), "reverse_proxy 127.0.0.1:1")
					if wrap != "" {
						body = []string{wrap + " {\n" + strings.Join(body, "\n") + "\n}"}
					}
					got, err := adapt(site1(body...))
					if err != nil {
						t.Fatalf("%v: %v", lines, err)
					}
					if first == "" {
						first = got
					}
					if got != first {
						t.Fatalf("order %q gives\n%s\nnot\n%s", lines, got, first)
					}
				})
			}
		})
	}
}

// The chain by hand stands as documented around Caddy's own directives.
func TestE76EffectiveOrder(t *testing.T) {
	got, err := adapt(site1(
		"reverse_proxy 127.0.0.1:1", "seckill_orders {\n user {http.auth.user.id}\n}", "seckill_reserve {\n user {http.auth.user.id}\n}",
		"seckill_user_limit 5s", "basic_auth {\n bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}",
		"seckill_gate", "seckill_rate_limit token_bucket 1/s", "header X a", "handle /x {\n respond x\n}"))
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, name := range []string{
		"headers", "seckill_rate_limit", "seckill_gate", "authentication", "seckill_user_limit", "seckill_reserve", "seckill_orders",
		"subroute", "reverse_proxy",
	} {
		i := strings.Index(got, `"handler": "`+name+`"`)
		if i < at {
			t.Errorf("%s stands too early in\n%s", name, got)
		}
		at = i
	}
}

func TestParseErrors(t *testing.T) {
	reserve := func(lines string) string { return site1("seckill_reserve {", "user {http.auth.user.id}", lines, "}") }
	short := func(lines string) string { return site1("seckill {", "user {http.auth.user.id}", lines, "}") }
	option := func(lines string) string { return "{\nseckill {\nredis a:1\nkafka b:2\n" + lines + "\n}\n}\n" }
	for name, c := range map[string]struct{ caddyfile, want string }{
		"global, twice":              {"{\nseckill {\nredis a:1\nkafka b:2\n}\nseckill {\n}\n}\n", "seckill is given twice in the global options, at Caddyfile:6"},
		"global, argument":           {"{\nseckill x {\n}\n}\n", `surplus argument "x", at Caddyfile:2`},
		"global, unknown":            {option("rdis a:1"), "unrecognized subdirective rdis, at Caddyfile:5"},
		"global, no redis":           {"{\nseckill {\nkafka b:2\n}\n}\n", "redis is missing"},
		"global, no kafka":           {"{\nseckill {\nredis a:1\n}\n}\n", "kafka is missing"},
		"global, redis twice":        {option("redis c:3"), "redis is given twice, first in line 3, at Caddyfile:5"},
		"global, redis no address":   {"{\nseckill {\nredis\n}\n}\n", "redis needs an address"},
		"global, redis unknown":      {"{\nseckill {\nredis a:1 {\nmax_retries 0\n}\n}\n}\n", "unrecognized subdirective max_retries, at Caddyfile:4"},
		"global, sentinel no name":   {"{\nseckill {\nredis a:1 sentinel\n}\n}\n", "wrong argument count"},
		"global, sentinel alone":     {"{\nseckill {\nredis sentinel m\n}\n}\n", "write `redis sentinel m <host>:<port>"},
		"global, sentinel twice":     {"{\nseckill {\nredis sentinel m a:1 {\nsentinel n\n}\n}\n}\n", "sentinel is given twice"},
		"global, flag with value":    {"{\nseckill {\nredis a:1 {\ntls yes\n}\n}\n}\n", `surplus argument "yes"`},
		"global, kafka unknown":      {"{\nseckill {\nkafka a:1 {\nacks 1\n}\n}\n}\n", "unrecognized subdirective acks"},
		"global, sasl too short":     {"{\nseckill {\nkafka a:1 {\nsasl PLAIN u\n}\n}\n}\n", "wrong argument count"},
		"global, bad prefix":         {option("prefix seckill/"), `prefix "seckill/" is not a path such as /seckill`},
		"global, bad duration":       {option("request_timeout fast"), `request_timeout: "fast" is not a duration`},
		"global, duration too short": {option("request_timeout 1us"), "too short"},
		"global, bad db":             {"{\nseckill {\nredis a:1 {\ndb -1\n}\n}\n}\n", `"-1" is not a number from 0 on`},
		"global, bad number":         {option("max_batch 0"), `max_batch: "0" is not a positive number`},

		"rate, nothing":      {site1("seckill_rate_limit"), "want an algorithm and a rate"},
		"rate, no rate":      {site1("seckill_rate_limit token_bucket"), "want an algorithm and a rate"},
		"rate, algorithm":    {site1("seckill_rate_limit guess 1/s"), `algorithm "guess" does not exist: want one of token_bucket, sliding_window, leaky_bucket, at Caddyfile:8`},
		"rate, bad rate":     {site1("seckill_rate_limit token_bucket fast"), "fast"},
		"rate, huge":         {site1("seckill_rate_limit token_bucket 99999999999999999999/s"), `rate "99999999999999999999/s": want 1 to 1000000000`},
		"rate, unknown":      {site1("seckill_rate_limit token_bucket 1/s brust 5"), "unrecognized option brust"},
		"rate, in block":     {site1("seckill_rate_limit token_bucket 1/s {", "brust 5", "}"), "unrecognized subdirective brust, at Caddyfile:9"},
		"rate, twice":        {site1("seckill_rate_limit token_bucket 1/s burst 5 {", "burst 6", "}"), "burst is given twice, first in line 8, at Caddyfile:9"},
		"rate, scope":        {site1("seckill_rate_limit sliding_window 1/s scope world"), `scope "world" does not exist: want local or cluster, at Caddyfile:8`},
		"rate, no scope":     {site1("seckill_rate_limit sliding_window 1/s scope"), "wrong argument count"},
		"rate, token scope":  {site1("seckill_rate_limit token_bucket 1/s scope cluster"), "write sliding_window in place of token_bucket, at Caddyfile:8"},
		"rate, leaky scope":  {site1("seckill_rate_limit leaky_bucket 1/s {", "scope cluster", "}"), "write sliding_window in place of leaky_bucket"},
		"rate, burst":        {site1("seckill_rate_limit sliding_window 1/s burst 5"), "sliding_window has no burst"},
		"rate, scope burst":  {site1("seckill_rate_limit sliding_window 1/s scope cluster burst 5"), "scope cluster has neither burst nor queue"},
		"rate, leaky burst":  {site1("seckill_rate_limit leaky_bucket 1/s burst 5"), "leaky_bucket has no burst"},
		"rate, token queue":  {site1("seckill_rate_limit token_bucket 1/s queue 5"), "token_bucket has no queue"},
		"rate, bad queue":    {site1("seckill_rate_limit leaky_bucket 1/s queue 0"), `queue: "0" is not a positive number`},
		"rate, window wait":  {site1("seckill_rate_limit sliding_window 1/s wait 1s"), "sliding_window has no queue"},
		"rate, bad wait":     {site1("seckill_rate_limit leaky_bucket 1/s wait long"), `"long" is not a duration`},
		"rate, endless wait": {site1("seckill_rate_limit leaky_bucket 1/s wait 2m"), "wait 2m0s: want up to 1m0s"},
		"rate, waiting":      {site1("seckill_rate_limit leaky_bucket 1/s max_waiting -1"), `"-1" is not a positive number`},
		"rate, divisor":      {site1("seckill_rate_limit sliding_window 1/s fallback_divisor 3"), "for scope cluster"},
		"rate, bad divisor":  {site1("seckill_rate_limit sliding_window 1/s scope cluster fallback_divisor 0"), `"0" is not a positive number`},
		"rate, local name":   {site1("seckill_rate_limit sliding_window 1/s name x scope local"), "for scope cluster"},
		"rate, timeout":      {site1("seckill_rate_limit sliding_window 1/s scope cluster timeout 1us"), "too short"},
		"rate, too much":     {site1("seckill_rate_limit sliding_window 100001/s scope cluster"), "too much for scope cluster: want at most 100000"},
		"rate, empty_key":    {site1("seckill_rate_limit token_bucket 1/s key {client_ip} empty_key 403"), "empty_key 403: want 400 or 401"},
		"rate, keyless":      {site1("seckill_rate_limit token_bucket 1/s empty_key 401"), "there is no key that could be empty"},
		"rate, only":         {site1("seckill_rate_limit token_bucket 1/s only writes"), `only "writes" does not exist: want purchases or reads`},
		"rate, no key":       {site1("seckill_rate_limit token_bucket 1/s key"), "wrong argument count"},
		"rate, empty key":    {site1(`seckill_rate_limit token_bucket 1/s key ""`), "the value is empty"},
		"rate, bad burst":    {site1("seckill_rate_limit token_bucket 1/s burst -1"), `"-1" is not a positive number`},
		"rate, max_keys":     {site1("seckill_rate_limit token_bucket 1/s max_keys many"), `"many" is not a positive number`},
		"rate, errors twice": {site1("seckill_rate_limit token_bucket 1/s handle_errors {", "handle_errors", "}"), "handle_errors is given twice"},
		"gate, errors":       {site1("seckill_gate {", "handle_errors yes", "}"), `surplus argument "yes"`},
		"gate, argument":     {site1("seckill_gate 5s"), `surplus argument "5s"`},
		"gate, unknown":      {site1("seckill_gate {", "user x", "}"), "unrecognized subdirective user"},
		"gate, field":        {site1("seckill_gate {", "activity field", "}"), "wrong argument count"},
		"gate, two values":   {site1("seckill_gate {", "activity a b", "}"), `surplus argument "b"`},
		"limit, no window":   {site1("seckill_user_limit"), "wrong argument count"},
		"limit, bad window":  {site1("seckill_user_limit soon"), `"soon" is not a duration`},
		"limit, surplus":     {site1("seckill_user_limit 5s 6s"), `surplus argument "6s"`},
		"limit, scope, too":  {site1("seckill_user_limit 5s {", "activity 1", "scope x", "}"), "scope stands in place of an activity"},
		"limit, too, scope":  {site1("seckill_user_limit 5s {", "scope x", "activity 1", "}"), "scope stands in place of an activity"},
		"reserve, no user":   {site1("seckill_reserve {", "pass", "}"), "Caddyfile:8: user is missing"},
		"reserve, bare":      {site1("seckill_reserve"), "Caddyfile:8: user is missing"},
		"reserve, argument":  {site1("seckill_reserve x"), `surplus argument "x"`},
		"reserve, unknown":   {reserve("stock 5"), "unrecognized subdirective stock, at Caddyfile:10"},
		"reserve, twice":     {reserve("user {x}"), "user is given twice, first in line 9, at Caddyfile:10"},
		"reserve, both":      {reserve("pass\nrespond"), "respond and pass exclude each other"},
		"reserve, word":      {reserve("pass on"), `surplus argument "on"`},
		"reserve, extra":     {reserve("extra {x}"), "extra comes from the body"},
		"reserve, body size": {reserve("max_body 2GB"), `max_body: "2GB" is not a size of at most 1.0 MiB`},
		"reserve, no size":   {reserve("max_body none"), `"none" is not a size`},
		"orders, no user":    {site1("seckill_orders"), "user is missing"},
		"orders, field":      {site1("seckill_orders {", "user field id", "}"), "a read has no body"},
		"orders, view":       {site1("seckill_orders {", "view_only", "user {x}", "}"), "view_only has no use for a user"},
		"orders, unknown":    {site1("seckill_orders {", "wait 5s", "}"), "unrecognized subdirective wait"},

		"shortcut, bare":            {site1("seckill"), "Caddyfile:8: user is missing"},
		"shortcut, argument":        {site1("seckill /sale {", "user {x}", "}"), `surplus argument "/sale"`},
		"shortcut, unknown":         {short("gate"), "unrecognized subdirective gate, at Caddyfile:10"},
		"shortcut, twice":           {short("user_window 1s\nuser_window 2s"), "user_window is given twice, first in line 10, at Caddyfile:11"},
		"shortcut, two auth":        {short("authenticate {\nvars a b\n}\nauthenticate {\nvars a b\n}"), "authenticate is given twice"},
		"shortcut, user field":      {site1("seckill {", "user field id", "}"), "the user must not come from the body"},
		"shortcut, surplus":         {short("user_window 1s 2s"), `surplus argument "2s"`},
		"shortcut, no auth":         {short("authenticate"), "authenticate is empty"},
		"shortcut, empty auth":      {short("authenticate {\n}"), "authenticate is empty"},
		"shortcut, auth argument":   {short("authenticate jwt {\nvars a b\n}"), "wrong argument count"},
		"shortcut, unknown in auth": {short("authenticate {\njwtauth\n}"), "unrecognized directive: jwtauth"},
		"shortcut, same limit":      {short("rate_limit token_bucket 1/s\nrate_limit token_bucket 1/s"), "the same rate_limit is given twice"},
		"shortcut, limit":           {short("rate_limit guess 1/s"), `"guess" does not exist: want one of token_bucket, sliding_window, leaky_bucket, at Caddyfile:10`},
		"shortcut, limit unknown":   {short("rate_limit token_bucket 1/s brust 1"), "unrecognized option brust"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := adapt(c.caddyfile)
			if err == nil {
				t.Fatalf("no error, but\n%s", got)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// What only shows when the parts are put together is refused by `caddy validate`.
func TestValidateErrors(t *testing.T) {
	reserve := func(user string) string { return site1("seckill_reserve {", "user "+user, "}") }
	for name, c := range map[string]struct{ caddyfile, want string }{
		"no app":                  {":8080 {\nseckill_gate\n}\n", "seckill is not configured"},
		"no app, cluster":         {":8080 {\nseckill_rate_limit sliding_window 1/s scope cluster\n}\n", "seckill is not configured"},
		"no app, shortcut":        {":8080 {\nseckill {\nuser {x}\n}\n}\n", "seckill is not configured"},
		"constant user":           {reserve("bob"), `user "bob" has no placeholder: all buyers would be one`},
		"typo in http.request":    {reserve("{http.request.haeder.X-User}"), "placeholder {http.request.haeder.X-User} does not exist"},
		"typo in http.auth":       {reserve("{http.auth.usr.id}"), "placeholder {http.auth.usr.id} does not exist"},
		"typo in http.vars":       {reserve("{http.vars.}"), "does not exist"},
		"typo in seckill":         {reserve("{seckill.user}"), "does not exist"},
		"typo in time":            {reserve("x{time.nwo}"), "does not exist"},
		"no name":                 {reserve("x{}"), "placeholder {} has no name"},
		"typo in a rate key":      {site1("seckill_rate_limit token_bucket 1/s key {http.request.remote.hots}"), "does not exist"},
		"a port in a rate key":    {site1("seckill_rate_limit token_bucket 1/s key {remote}"), "{http.request.remote} changes with every connection"},
		"an id in a rate key":     {site1("seckill {", "user {http.auth.user.id}", "rate_limit sliding_window 1/s key {client_ip}-{http.request.uuid}", "}"), "{http.request.uuid} changes"},
		"a time in a rate key":    {site1("seckill_rate_limit sliding_window 1/s scope cluster key {client_ip}{time.now.unix}"), "use {client_ip}, or who the buyer is"},
		"constant rate key":       {site1("seckill_rate_limit token_bucket 1/s key all"), `key "all" has no placeholder`},
		"typo in an activity":     {site1("seckill_gate {", "activity {http.request.uri.path.x}", "}"), "does not exist"},
		"a word as activity":      {site1("seckill_gate {", "activity abc", "}"), `activity "abc": want a decimal integer: give one, or a placeholder, or`},
		"a second spelling":       {site1("seckill_user_limit 5s {", "activity 01", "user {http.auth.user.id}", "}"), `activity "01"`},
		"a word as quantity":      {site1("seckill_reserve {", "user {http.auth.user.id}", "activity 1", "quantity two", "}"), `quantity "two": the quantity is not an integer from 1`},
		"an open brace":           {reserve("{http.auth.user.id"), `user: "{http.auth.user.id" has a brace that is not closed: write {http.auth.user.id}`},
		"an open brace in a key":  {site1("seckill_rate_limit token_bucket 1/s key {client_ip}-{header.X"), "has a brace that is not closed"},
		"two chains":              {site1("seckill {", "user {http.auth.user.id}", "}", "seckill {", "user {http.auth.user.id}", "}"), "where a site has two chains, leave one out"},
		"user limit without user": {site1("seckill_user_limit 5s"), "user: none given"},
		"user limit, other user": {
			site1("seckill_user_limit 5s", "respond /x 200", "route {", "seckill_reserve {", "user {http.auth.user.id}", "}", "}"), "user: none given",
		},
		"limit behind reserve": {
			site1("route {", "seckill_reserve {", "user {http.auth.user.id}", "}", "seckill_user_limit 5s {", "user {http.auth.user.id}", "}", "}"),
			"seckill_user_limit stands behind seckill_reserve",
		},
		"gate behind reserve": {
			site1("route {", "seckill_reserve {", "user {http.auth.user.id}", "}", "seckill_gate", "}"),
			"seckill_gate stands behind seckill_reserve",
		},
		"no error routes":  {site1("seckill_gate {", "handle_errors", "}"), "handle_errors is set, but this server has no error routes"},
		"no errors, limit": {site1("seckill_rate_limit token_bucket 1/s handle_errors"), "add a handle_errors block to the site"},
		"no errors, all":   {site1("seckill {", "user {http.auth.user.id}", "handle_errors", "}"), "add a handle_errors block to the site"},
		"bad address":      {"{\nseckill {\nredis here\nkafka a:1\n}\n}\n", `redis: addrs: "here" is not host:port`},
		"bad broker":       {"{\nseckill {\nredis a:1\nkafka here\n}\n}\n", `brokers: "here" is not host:port`},
		"unset env":        {"{\nseckill {\nredis a:1 {\npassword {env.SECKILL_NO_SUCH}\n}\nkafka a:1\n}\n}\n", "SECKILL_NO_SUCH"},
		"cluster and db":   {"{\nseckill {\nredis a:1 b:2 {\ndb 3\n}\nkafka a:1\n}\n}\n", "a cluster knows only database 0"},
		"publish too fast": {"{\nseckill {\nredis a:1\nkafka a:1\npublish_timeout 10ms\n}\n}\n", "publish_timeout 10ms is too short"},
		"bad mechanism":    {"{\nseckill {\nredis a:1\nkafka a:1 {\nsasl GSSAPI u p\n}\n}\n}\n", "GSSAPI"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := adapt(c.caddyfile)
			if err != nil {
				t.Fatal(err)
			}
			err = validate(t, config)
			if err == nil {
				t.Fatalf("no error for\n%s", config)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// JSON that the Caddyfile cannot express is checked, too.
func TestValidateJSON(t *testing.T) {
	for name, c := range map[string]struct{ handler, want string }{
		"algorithm":       {`{"handler":"seckill_rate_limit","algorithm":"guess","limit":1}`, `unknown algorithm "guess"`},
		"scope":           {`{"handler":"seckill_rate_limit","scope":"world","limit":1}`, `scope "world" does not exist`},
		"token scope":     {`{"handler":"seckill_rate_limit","scope":"cluster","limit":1}`, "write sliding_window in place of token_bucket"},
		"negative queue":  {`{"handler":"seckill_rate_limit","algorithm":"leaky_bucket","limit":1,"queue":-1}`, "queue -1: want at least 1"},
		"negative share":  {`{"handler":"seckill_rate_limit","algorithm":"sliding_window","scope":"cluster","limit":1,"fallback_divisor":-1}`, "fallback_divisor -1"},
		"empty key":       {`{"handler":"seckill_rate_limit","limit":1,"key":"{http.auth.user.id}","empty_key":500}`, "want 400 or 401"},
		"no limit":        {`{"handler":"seckill_rate_limit"}`, "limit: none given"},
		"unknown field":   {`{"handler":"seckill_rate_limit","limt":1}`, "limt"},
		"value and field": {`{"handler":"seckill_gate","activity":{"value":"1","field":"a"}}`, "has both a value and a field"},
		"empty value":     {`{"handler":"seckill_gate","activity":{}}`, "has neither a value nor a field"},
		"body size":       {`{"handler":"seckill_gate","max_body":9999999}`, "max_body 9999999 is out of range"},
		"prefix":          {`{"handler":"seckill_gate","prefix":"/"}`, `prefix "/" is not a path`},
		"no user":         {`{"handler":"seckill_reserve"}`, "user: none given"},
		"extra":           {`{"handler":"seckill_reserve","user":{"value":"{http.auth.user.id}"},"extra":{"value":"x"}}`, "want a field of the body"},
		"window":          {`{"handler":"seckill_reserve","user":{"value":"{http.auth.user.id}"},"user_window":5}`, "too short"},
		"no window":       {`{"handler":"seckill_user_limit","user":{"value":"{http.auth.user.id}"}}`, "window 0s is too short"},
		"scope with key":  {`{"handler":"seckill_user_limit","window":"1s","scope":"{a}","user":{"value":"{http.auth.user.id}"}}`, "it is a fixed name"},
		"orders, field":   {`{"handler":"seckill_orders","user":{"field":"id"}}`, "a read has no body"},
		"negative":        {`{"handler":"seckill_orders","user":{"value":"{http.auth.user.id}"},"heartbeat":-1}`, "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			err := validate(t, `{"apps":{"seckill":{"redis":{"addresses":["a:1"]},"kafka":{"brokers":["a:1"]}},
				"http":{"servers":{"s":{"listen":["127.0.0.1:0"],"routes":[{"handle":[`+c.handler+`]}]}}}}}`)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}
