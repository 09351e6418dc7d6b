package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/seckillgate/seckillgate/internal/kafka"
)

// parseGlobalOption makes the app from the global option `seckill`.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		d.Next()
		return nil, d.Err("seckill is given twice in the global options")
	}
	app := new(App)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "seckill", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens. Syntax:
//
//	seckill {
//	    redis <address…> {
//	        sentinel          <master>
//	        cluster
//	        db                <n>
//	        username          <name>
//	        password          <password>
//	        sentinel_username <name>
//	        sentinel_password <password>
//	        tls
//	        ca_file           <path>
//	        pool_size         <n>
//	        min_idle          <n>
//	        dial_timeout      <duration>
//	        read_timeout      <duration>
//	        write_timeout     <duration>
//	        pool_timeout      <duration>
//	    }
//	    kafka <broker…> {
//	        topic             <name>
//	        version           <version>
//	        client_id         <name>
//	        tls
//	        ca_file           <path>
//	        cert              <cert file> <key file>
//	        server_name       <name>
//	        sasl              <mechanism> <user> <password>
//	        max_message_bytes <n>
//	    }
//	    prefix          <path>
//	    request_timeout <duration>
//	    publish_timeout <duration>
//	    drain_timeout   <duration>
//	    max_batch       <n>
//	    max_queue       <n>
//	    max_open        <n>
//	    max_waiters     <n>
//	}
//
// `redis` and `kafka` are required. Several Redis addresses are seeds of a cluster; `redis sentinel <master> <address…>`
// is short for the sentinel option. A single address with `cluster` is a cluster's seed.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option's name
	o := options{d: d}
	if err := o.done(); err != nil {
		return err
	}
	err := o.each(0, func(name string) (bool, error) {
		switch name {
		case "redis":
			return true, a.Redis.unmarshal(d)
		case "kafka":
			return true, unmarshalKafka(&a.Kafka, d)
		case "prefix":
			return true, o.prefix(&a.Prefix)
		case "request_timeout":
			return true, o.duration(&a.RequestTimeout)
		case "publish_timeout":
			return true, o.duration(&a.PublishTimeout)
		case "drain_timeout":
			return true, o.duration(&a.DrainTimeout)
		case "max_batch":
			return true, o.count(&a.MaxBatch)
		case "max_queue":
			return true, o.count(&a.MaxQueue)
		case "max_open":
			return true, o.count(&a.MaxOpen)
		case "max_waiters":
			return true, o.count(&a.MaxWaiters)
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case len(a.Redis.Addresses) == 0:
		return d.Err("redis is missing: write `redis <host>:<port>`")
	case len(a.Kafka.Brokers) == 0:
		return d.Err("kafka is missing: write `kafka <host>:<port>`")
	}
	return nil
}

func (r *Redis) unmarshal(d *caddyfile.Dispenser) error {
	o := options{d: d}
	for d.NextArg() {
		if d.Val() != "sentinel" {
			r.Addresses = append(r.Addresses, d.Val())
			continue
		}
		if err := o.once("sentinel"); err != nil {
			return err
		}
		if err := o.text(&r.Sentinel); err != nil {
			return err
		}
	}
	if len(r.Addresses) == 0 && r.Sentinel != "" {
		return d.Errf("redis needs the sentinels' addresses: write `redis sentinel %s <host>:<port> …`", r.Sentinel)
	}
	if len(r.Addresses) == 0 {
		return d.Err("redis needs an address: write `redis <host>:<port>`")
	}
	return o.each(1, func(name string) (bool, error) {
		switch name {
		case "sentinel":
			return true, o.text(&r.Sentinel)
		case "cluster":
			return true, o.flag(&r.Cluster)
		case "db":
			return true, o.orNone(&r.DB)
		case "username":
			return true, o.text(&r.Username)
		case "password":
			return true, o.text(&r.Password)
		case "sentinel_username":
			return true, o.text(&r.SentinelUsername)
		case "sentinel_password":
			return true, o.text(&r.SentinelPassword)
		case "tls":
			return true, o.flag(&r.TLS)
		case "ca_file":
			return true, o.text(&r.CAFile)
		case "pool_size":
			return true, o.count(&r.PoolSize)
		case "min_idle":
			return true, o.orNone(&r.MinIdle)
		case "dial_timeout":
			return true, o.duration(&r.DialTimeout)
		case "read_timeout":
			return true, o.duration(&r.ReadTimeout)
		case "write_timeout":
			return true, o.duration(&r.WriteTimeout)
		case "pool_timeout":
			return true, o.duration(&r.PoolTimeout)
		}
		return false, nil
	})
}

func unmarshalKafka(k *kafka.Config, d *caddyfile.Dispenser) error {
	o := options{d: d}
	if err := o.texts(&k.Brokers); err != nil {
		return err
	}
	return o.each(1, func(name string) (bool, error) {
		switch name {
		case "topic":
			return true, o.text(&k.Topics.Orders)
		case "version":
			return true, o.text(&k.Version)
		case "client_id":
			return true, o.text(&k.ClientID)
		case "tls":
			return true, o.flag(&k.TLS.Enable)
		case "ca_file":
			return true, o.text(&k.TLS.CAFile)
		case "cert":
			if err := o.text(&k.TLS.CertFile); err != nil {
				return true, err
			}
			return true, o.text(&k.TLS.KeyFile)
		case "server_name":
			return true, o.text(&k.TLS.ServerName)
		case "sasl":
			for _, into := range []*string{&k.SASL.Mechanism, &k.SASL.User, &k.SASL.Password} {
				if err := o.text(into); err != nil {
					return true, err
				}
			}
			return true, nil
		case "max_message_bytes":
			return true, o.count(&k.MaxMessageBytes)
		}
		return false, nil
	})
}

var _ caddyfile.Unmarshaler = (*App)(nil)
