package caddymodule

import (
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
)

// handlerOf is a handler module T through its pointer.
type handlerOf[T any] interface {
	*T
	caddyhttp.MiddlewareHandler
	caddyfile.Unmarshaler
}

// parseHandler makes the setup function of a directive that is one handler.
func parseHandler[T any, P handlerOf[T]](h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	m := P(new(T))
	if err := m.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	if p, ok := any(m).(interface{ defaultPrefix(string) }); ok {
		p.defaultPrefix(prefixOf(h))
	}
	return m, nil
}

// options reads the subdirectives of a block and refuses unknown and repeated ones, with their lines.
type options struct {
	d    *caddyfile.Dispenser
	seen map[string]int
	name string // of the option being read
}

// errf is an error about the option being read.
func (o *options) errf(format string, a ...any) error {
	if o.name != "" {
		format, a = "%s: "+format, append([]any{o.name}, a...)
	}
	return o.d.Errf(format, a...)
}

// each calls fn for every subdirective of the block that follows. fn reports whether it knows the name; what it leaves
// unread on the line is refused.
func (o *options) each(nesting int, fn func(name string) (known bool, err error)) error {
	for o.d.NextBlock(nesting) {
		name := o.d.Val()
		if err := o.once(name); err != nil {
			return err
		}
		known, err := fn(name)
		if err != nil {
			return err
		}
		if !known {
			return o.d.Errf("unrecognized subdirective %s", name)
		}
		if err := o.done(); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) once(name string) error {
	if o.seen == nil {
		o.seen = make(map[string]int)
	}
	if line, ok := o.seen[name]; ok {
		return o.d.Errf("%s is given twice, first in line %d", name, line)
	}
	o.seen[name], o.name = o.d.Line(), name
	return nil
}

// done refuses a surplus token.
func (o *options) done() error {
	if o.d.NextArg() {
		return o.d.Errf("surplus argument %q", o.d.Val())
	}
	return nil
}

func (o *options) text(into *string) error {
	if !o.d.NextArg() {
		return o.d.ArgErr()
	}
	if o.d.Val() == "" {
		return o.errf("the value is empty")
	}
	*into = o.d.Val()
	return nil
}

func (o *options) texts(into *[]string) error {
	*into = append(*into, o.d.RemainingArgs()...)
	if len(*into) == 0 {
		return o.d.ArgErr()
	}
	return nil
}

func (o *options) duration(into *caddy.Duration) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v, err := caddy.ParseDuration(s)
	if err != nil {
		return o.errf("%q is not a duration such as 500ms, 5s or 1m", s)
	}
	if v < time.Millisecond {
		return o.errf("%s is too short: want at least 1ms", s)
	}
	*into = caddy.Duration(v)
	return nil
}

func (o *options) count(into *int) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v, err := strconv.Atoi(s)
	if err != nil || v <= 0 {
		return o.errf("%q is not a positive number", s)
	}
	*into = v
	return nil
}

// orNone reads a number of which 0 is one too.
func (o *options) orNone(into *int) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < 0 {
		return o.errf("%q is not a number from 0 on", s)
	}
	*into = v
	return nil
}

func (o *options) size(into *int64) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v, err := humanize.ParseBytes(s)
	if err != nil || v == 0 || v > maxMaxBody {
		return o.errf("%q is not a size of at most %s, such as 4KiB", s, humanize.IBytes(maxMaxBody))
	}
	*into = int64(v)
	return nil
}

// flag is a word that stands alone.
func (o *options) flag(into *bool) error {
	*into = true
	return nil
}

// prefix reads a path prefix.
func (o *options) prefix(into *string) error {
	if err := o.text(into); err != nil {
		return err
	}
	if err := checkPrefix(*into); err != nil {
		return o.d.Err(err.Error())
	}
	return nil
}

// value reads `<placeholder or constant>` or `field <path>`.
func (o *options) value(into **Value) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v := &Value{Value: s}
	if s == "field" {
		v = new(Value)
		if err := o.text(&v.Field); err != nil {
			return err
		}
	}
	*into = v
	return nil
}

// number reads the digits that a directive's line gives as an argument, such as `burst 2000`.
func (o *options) number(into *int64) error {
	var s string
	if err := o.text(&s); err != nil {
		return err
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return o.errf("%q is not a positive number", s)
	}
	*into = v
	return nil
}
