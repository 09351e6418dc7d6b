//go:build crashpoints

package crashpoint

import "testing"

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		name string
		nth  int64
	}{{"", "", 1}, {"after_commit", "after_commit", 1}, {"after_commit:3", "after_commit", 3}} {
		name, nth := parse(c.in)
		if name != c.name || nth != c.nth {
			t.Errorf("parse(%q) = %q, %d; want %q, %d", c.in, name, nth, c.name, c.nth)
		}
	}
}
