package main

import (
	"strings"
	"testing"
)

// A name that does not exist is an error, not a page of help.
func TestUnknownCommand(t *testing.T) {
	if out, err := drill(t, "chek"); err == nil || !strings.Contains(err.Error(), `unknown command "chek": did you mean check?`) || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}
