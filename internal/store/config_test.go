package store

import (
	"strings"
	"testing"
)

// Of a DSN everything is shown but its password and its parameters, and nothing where a part of the password may be taken for something
// else; nor do the errors of one that cannot be read repeat it.
func TestShownDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"shop:s3cret@tcp(db:3307)/sale":                "shop:***@tcp(db:3307)/sale",
		"shop:s3cret@tcp(db)/sale?timeout=5s&x=s3cret": "shop:***@tcp(db:3306)/sale?***",
		"shop@tcp(db)/sale":                            "shop@tcp(db:3306)/sale",
		"shop:s3cret@/sale":                            "shop:***@tcp(127.0.0.1:3306)/sale",
		"shop:s3cret@unix(/run/mysql.sock)/sale":       "shop:***@unix(/run/mysql.sock)/sale",
		"shop:s3cret@tcp([::1]:3306)/sale":             "shop:***@tcp([::1]:3306)/sale",
		"shop:s3cret@s3cret@tcp(db)/sale":              "shop:***@tcp(db:3306)/sale",
		"shop:s3cret:s3cret@tcp(db)/sale":              "shop:***@tcp(db:3306)/sale",
		"shop:s3cret/s3cret@tcp(db)/sale":              "shop:***@tcp(db:3306)/sale",
		"shop:s3cret?s3cret@tcp(s3cret)@tcp(db)/sale":  "shop:***@tcp(db:3306)/sale",
		"shop:/@:/s3cret(s3cret)/@tcp(db)/sale":        "shop:***@tcp(db:3306)/sale",
		"shop:s3cret@tcp(db)/sale?a=b@s3cret":          "",
		"shop:s3cret/s3cret@tcp(db)":                   "",
		"shop:x@s3cret/s3cret@tcp(db)":                 "",
		"shop:x@tcp(s3cret)/s3cret@tcp(db)":            "",
		"shop:x@tcp(s3cret)/s3cret?s3cret@tcp(db)":     "",
		"shop:x/%s3cret@tcp(db)":                       "",
		"shop/s3cret@tcp(db)/sale":                     "",
		":s3cret@tcp(db)/sale":                         "",
		"shop:s3cret@tcp(db)/":                         "",
		"shop:s3cret@pipe(db)/sale":                    "",
		"mysql://shop:s3cret@db:3306/sale":             "",
		"mysql://shop:s3cret/s3cret@db:3306":           "",
		"shop:s3cret":                                  "",
		"":                                             "",
	} {
		c := Config{DSN: dsn}
		if got := c.Shown()["dsn"]; got != want {
			t.Errorf("%s is shown as %q, want %q", dsn, got, want)
		}
		if _, err := c.driver(); err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
