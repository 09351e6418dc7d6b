// Package config loads the configuration of a process: defaults, then a YAML file, then the environment over it.
package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the name of every environment variable that Load reads.
const EnvPrefix = "SECKILL_"

// Load fills `into`, a pointer to a struct with yaml tags that already holds the defaults. It reads the YAML file at path, if path
// is not empty, refusing keys that the struct does not have; then the environment, where the key redis.addrs is
// SECKILL_REDIS_ADDRS, lists are separated by commas, durations read like 5s, and an empty variable counts as none. Then it
// calls SetDefaults(), and after that Validate() error, wherever the struct and its nested structs have them, inner ones first. A
// number that was given as 0 and that SetDefaults replaces is refused.
//
// Errors name the key, its value and the file and line or the variable that it came from. A message of Validate should begin
// with its key, as in "brokers: none given", so that its origin can be found.
func Load(path string, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("configuration is a %T: want a pointer to a struct", into)
	}
	l := loader{file: path, origin: map[string]string{}}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		if err := l.yaml(data, v.Elem()); err != nil {
			return err
		}
	}
	if err := l.environment(v.Elem()); err != nil {
		return err
	}
	zeros := l.zeros(v.Elem())
	setDefaults(v.Elem())
	if err := l.replaced(v.Elem(), zeros); err != nil {
		return err
	}
	return l.validate(v.Elem(), "")
}

// loader remembers where values came from.
type loader struct {
	file   string
	origin map[string]string // key → "file:line" or variable
}

func (l *loader) at(line int) string { return fmt.Sprintf("%s:%d", l.file, line) }

// yaml decodes a document into a struct.
func (l *loader) yaml(data []byte, into reflect.Value) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %w", l.file, err)
	}
	if doc.Kind == 0 { // nothing but comments
		return nil
	}
	return l.mapping(doc.Content[0], into, "")
}

// mapping decodes the keys of a mapping into the fields of a struct.
func (l *loader) mapping(node *yaml.Node, into reflect.Value, key string) error {
	node = follow(node)
	if isNull(node) {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("%s: %s is not a section: want indented \"key: value\" lines", l.at(node.Line), named(key))
	}
	known := map[string]field{}
	var names []string
	for _, f := range fields(into) {
		known[f.name] = f
		names = append(names, f.name)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		at := l.at(name.Line)
		f, ok := known[name.Value]
		if !ok {
			return fmt.Errorf("%s: unknown key %q in %s: want one of %s", at, name.Value, named(key), strings.Join(names, ", "))
		}
		if line, twice := seen[f.name]; twice {
			return fmt.Errorf("%s: key %q is given twice: remove one, the other is in line %d", at, join(key, f.name), line)
		}
		seen[f.name] = name.Line
		l.origin[join(key, f.name)] = at
		if err := l.value(value, f.value, join(key, f.name)); err != nil {
			return err
		}
	}
	return nil
}

// value decodes one value. Null leaves the default.
func (l *loader) value(node *yaml.Node, into reflect.Value, key string) error {
	node = follow(node)
	switch {
	case isNull(node):
		return nil
	case isSection(into.Type()):
		return l.mapping(node, into, key)
	case into.Kind() == reflect.Pointer && isSection(into.Type().Elem()):
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		return l.mapping(node, into.Elem(), key)
	case into.Kind() == reflect.Slice && isSection(into.Type().Elem()) && node.Kind == yaml.SequenceNode:
		out := reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content))
		for i, n := range node.Content {
			if err := l.value(n, out.Index(i), fmt.Sprintf("%s[%d]", key, i)); err != nil {
				return err
			}
		}
		into.Set(out)
		return nil
	}
	var err error
	switch {
	case node.Kind != yaml.ScalarNode:
		err = node.Decode(into.Addr().Interface())
	case isScalar(into.Type()), into.Kind() == reflect.Slice && isScalar(into.Type().Elem()):
		err = fromText(node.Value, into) // by the same rules as a variable: 5 is no duration, and a word is a list of one
	default:
		err = node.Decode(into.Addr().Interface())
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", l.at(node.Line), key, plain(err))
}

// plain takes the library's heading off its messages.
func plain(err error) error {
	if t := new(yaml.TypeError); errors.As(err, &t) && len(t.Errors) > 0 {
		return errors.New(t.Errors[0])
	}
	return err
}

func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func named(key string) string {
	if key == "" {
		return "the top level"
	}
	return key
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// zeros are the keys that somebody gave the number 0, or a duration of it.
func (l *loader) zeros(v reflect.Value) map[string]bool {
	found := map[string]bool{}
	_ = l.walk(v, "", func(key string, v reflect.Value) error {
		if l.origin[key] != "" && isNumber(v.Kind()) && v.IsZero() {
			found[key] = true
		}
		return nil
	})
	return found
}

// replaced refuses a zero that a default has taken the place of: whoever wrote it meant something else, none or no limit perhaps. A
// key that was left out is what means the default.
func (l *loader) replaced(v reflect.Value, zeros map[string]bool) error {
	return l.walk(v, "", func(key string, v reflect.Value) error {
		if !zeros[key] || v.IsZero() {
			return nil
		}
		return fmt.Errorf("%s: %s: 0 is no value of it: leave the key out for the default, %v, or give another value", l.origin[key], key, v.Interface())
	})
}

func setDefaults(v reflect.Value) {
	for _, f := range fields(v) {
		if s, ok := section(f.value); ok {
			setDefaults(s)
		}
	}
	if d, ok := v.Addr().Interface().(interface{ SetDefaults() }); ok {
		d.SetDefaults()
	}
}

func (l *loader) validate(v reflect.Value, key string) error {
	for _, f := range fields(v) {
		if s, ok := section(f.value); ok {
			if err := l.validate(s, join(key, f.name)); err != nil {
				return err
			}
		}
	}
	c, ok := v.Addr().Interface().(interface{ Validate() error })
	if !ok {
		return nil
	}
	err := c.Validate()
	if err == nil {
		return nil
	}
	if head := leadingKey.FindStringSubmatch(err.Error()); head != nil {
		for at := join(key, head[1]); at != ""; at = parent(at) {
			if from := l.origin[at]; from != "" {
				return fmt.Errorf("%s: %w", from, prefixed(key, err))
			}
		}
		return fmt.Errorf("%w (it is set nowhere; its variable is %s)", prefixed(key, err), envName(join(key, head[1])))
	}
	if from := l.origin[key]; from != "" {
		return fmt.Errorf("%s: %s: %w", from, key, err)
	}
	if key != "" {
		return fmt.Errorf("%s: %w", key, err)
	}
	return err
}

// leadingKey finds the key that a message begins with.
var leadingKey = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*): `)

func prefixed(key string, err error) error {
	if key == "" {
		return err
	}
	return fmt.Errorf("%s.%w", key, err)
}

func parent(key string) string {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return ""
	}
	return key[:i]
}
