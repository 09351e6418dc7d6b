package ratelimit

import "testing"

// What is taken as a rate is one that every algorithm can work with, and reads back as itself.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"10000/s", "5/m", "100/h", "20/10s", "1/1h30m", "0/s", "-1/s", "1/", "/s", "1/s/s", "9223372036854775807/s", "1/-1s", "٣/s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Fatalf("%q is %+v, written %q, read as %+v, %v", s, r, r.String(), again, err)
		}
	})
}
