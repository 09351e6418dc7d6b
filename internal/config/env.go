package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// envName is the variable of a key.
func envName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// environment puts the variables that are set over what is there.
func (l *loader) environment(v reflect.Value) error {
	names := map[string]string{}
	return l.walk(v, "", func(key string, into reflect.Value) error {
		name := envName(key)
		if other, taken := names[name]; taken {
			return fmt.Errorf("keys %q and %q have the same variable %s", other, key, name)
		}
		names[name] = key
		text := os.Getenv(name)
		if text == "" {
			return nil
		}
		if err := fromText(text, into); err != nil {
			return fmt.Errorf("%s: %s: %w", name, key, err)
		}
		l.origin[key] = name
		return nil
	})
}

// walk visits every key that is not a section.
func (l *loader) walk(v reflect.Value, key string, visit func(key string, v reflect.Value) error) error {
	for _, f := range fields(v) {
		at := join(key, f.name)
		if s, ok := section(f.value); ok {
			if err := l.walk(s, at, visit); err != nil {
				return err
			}
			continue
		}
		if err := visit(at, f.value); err != nil {
			return err
		}
	}
	return nil
}

// fromText fills a value from a variable: scalars as they are, lists of scalars split at commas, anything else as YAML.
func fromText(text string, into reflect.Value) error {
	switch {
	case isScalar(into.Type()):
		return parse(text, into)
	case into.Kind() == reflect.Slice && isScalar(into.Type().Elem()):
		out := reflect.MakeSlice(into.Type(), 0, 4)
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			item := reflect.New(into.Type().Elem()).Elem()
			if err := parse(part, item); err != nil {
				return err
			}
			out = reflect.Append(out, item)
		}
		into.Set(out)
		return nil
	}
	fresh := reflect.New(into.Type())
	if err := yaml.Unmarshal([]byte(text), fresh.Interface()); err != nil {
		return plain(err)
	}
	into.Set(fresh.Elem())
	return nil
}

// serviceLinks are the variables that Kubernetes adds for services whose names begin with seckill-.
var serviceLinks = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// UnknownEnv lists the SECKILL_ variables that are set and that `into` has no key for. They are worth a warning and no more: the
// parts of the product may share one environment.
func UnknownEnv(into any) []string {
	v := reflect.ValueOf(into)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	known := map[string]bool{}
	if v.Kind() == reflect.Struct {
		_ = new(loader).walk(v, "", func(key string, _ reflect.Value) error {
			known[envName(key)] = true
			return nil
		})
	}
	var out []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, EnvPrefix) && !known[name] && !serviceLinks.MatchString(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
