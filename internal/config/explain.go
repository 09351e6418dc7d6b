package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// redacted stands for a secret.
const redacted = "***"

// Explain prints every key of `into` with its effective value as YAML, and its environment variable beside it. Values of fields
// tagged `secret:"true"`, or named like secrets, are redacted, and so are passwords within values that look like URLs or DSNs. A
// section with a method Shown says itself what to show of its secret keys.
func Explain(into any, out io.Writer) error {
	v := reflect.ValueOf(into)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return fmt.Errorf("configuration is a %T: want a struct", into)
	}
	node, err := explain(v, "")
	if err != nil {
		return err
	}
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return err
	}
	return enc.Close()
}

func explain(v reflect.Value, key string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.MappingNode}
	var shown map[string]string
	if s, ok := v.Interface().(interface{ Shown() map[string]string }); ok {
		shown = s.Shown()
	}
	for _, f := range fields(v) {
		at := join(key, f.name)
		value := &yaml.Node{}
		if s, ok := section(f.value); ok {
			inner, err := explain(s, at)
			if err != nil {
				return nil, err
			}
			value = inner
		} else {
			if err := value.Encode(f.value.Interface()); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			redact(value, f.secret && !f.value.IsZero())
			if text := shown[f.name]; text != "" && f.secret {
				value.SetString(text)
			}
			if value.Kind == yaml.SequenceNode {
				value.Style = yaml.FlowStyle
			}
			value.LineComment = envName(at)
		}
		out.Content = append(out.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.name}, value)
	}
	return out, nil
}

// redact hides a whole value, or the passwords within it.
func redact(n *yaml.Node, whole bool) {
	for i, c := range n.Content {
		// In a mapping the keys stay, and may say that their values are secret.
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		redact(c, whole || n.Kind == yaml.MappingNode && secretName(strings.ToLower(n.Content[i-1].Value)))
	}
	if n.Kind != yaml.ScalarNode {
		return
	}
	if whole {
		n.SetString(redacted)
		return
	}
	if hidden := Redact(n.Value); hidden != n.Value {
		n.SetString(hidden)
	}
}

// Redact hides the password in a URL or a MySQL DSN: user:password@host becomes user:***@host. Of a web address it hides the query
// too, which is where those keep tokens. It is for logs, too.
func Redact(s string) string {
	if place, query, ok := strings.Cut(s, "?"); ok && query != "" && (strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")) {
		return Redact(place) + "?" + redacted
	}
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	start := 0
	if i := strings.Index(s, "://"); i >= 0 && i < at {
		start = i + len("://")
	}
	colon := strings.IndexByte(s[start:at], ':')
	if colon < 0 {
		return s
	}
	return s[:start+colon+1] + redacted + s[at:]
}
