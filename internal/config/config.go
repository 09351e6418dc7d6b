// Package config loads the configuration of a process: defaults, then a YAML file, then the environment over it.
package config

import "io"

// EnvPrefix begins the name of every environment variable that Load reads.
const EnvPrefix = "SECKILL_"

// Load fills `into`, a pointer to a struct with yaml tags that already holds the defaults. It reads the YAML file at path, if path
// is not empty, refusing keys that the struct does not have; then the environment, where the key redis.addrs is SECKILL_REDIS_ADDRS,
// lists are separated by commas and durations read like 5s. Then it calls SetDefaults() and Validate() error wherever the
// struct and its nested structs have them, inner ones first. Errors name the key, its value and the file and line or the
// variable that it came from.
func Load(path string, into any) error { panic("TODO") }

// UnknownEnv lists the SECKILL_ variables that are set and that `into` has no key for. They are worth a warning and no more: the
// parts of the product share one environment, and Kubernetes adds variables of its own.
func UnknownEnv(into any) []string { panic("TODO") }

// Explain prints every key of `into` with its effective value as YAML. Values of fields tagged `secret:"true"` are redacted, and
// passwords within values that look like URLs or DSNs.
func Explain(into any, out io.Writer) error { panic("TODO") }
