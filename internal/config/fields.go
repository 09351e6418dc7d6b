package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// field is a struct's field as the configuration sees it.
type field struct {
	name   string // its key
	value  reflect.Value
	secret bool
}

// fields lists the fields of a struct by their yaml names; inlined structs' fields are among them.
func fields(v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		t := v.Type().Field(i)
		name, options, _ := strings.Cut(t.Tag.Get("yaml"), ",")
		if name == "-" || !t.IsExported() {
			continue
		}
		if options == "inline" {
			out = append(out, fields(v.Field(i))...)
			continue
		}
		if name == "" {
			name = strings.ToLower(t.Name)
		}
		out = append(out, field{name, v.Field(i), t.Tag.Get("secret") == "true" || secretName(name)})
	}
	return out
}

func secretName(name string) bool {
	for _, word := range []string{"password", "secret", "token"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	yamlType     = reflect.TypeFor[yaml.Unmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
)

// isSection says that a type is a struct with keys of its own.
func isSection(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(textType) && !p.Implements(yamlType) && t != reflect.TypeFor[time.Time]()
}

// section gives the struct in a field that is one or points to one.
func section(v reflect.Value) (reflect.Value, bool) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v, isSection(v.Type())
}

// isScalar says that parse can fill a type from one word.
func isScalar(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	if p.Implements(yamlType) {
		return false
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return true
	default:
		return p.Implements(textType)
	}
}

func isNumber(k reflect.Kind) bool {
	return k >= reflect.Int && k <= reflect.Float64 && k != reflect.Uintptr
}

// parse fills a scalar.
func parse(text string, into reflect.Value) error {
	if into.Kind() == reflect.Pointer {
		fresh := reflect.New(into.Type().Elem())
		if err := parse(text, fresh.Elem()); err != nil {
			return err
		}
		into.Set(fresh)
		return nil
	}
	if u, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		return nil
	}
	if into.Type() == durationType {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("%q is not a duration: write it with its unit, like 500ms, 5s or 1h30m", text)
		}
		into.SetInt(int64(d))
		return nil
	}
	kind := into.Kind()
	if kind == reflect.String {
		into.SetString(text)
		return nil
	}
	text = strings.TrimSpace(text)
	bits := into.Type().Bits
	switch kind {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		into.SetBool(b)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, bits())
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		into.SetFloat(f)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number from 0 to %d", text, ^uint64(0)>>(64-bits()))
		}
		into.SetUint(n)
	default:
		n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number of %d bits", text, bits())
		}
		into.SetInt(n)
	}
	return nil
}
