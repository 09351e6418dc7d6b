package store

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Migrations are numbered, run once each and hold one statement a file: MySQL cannot undo a schema change, so a file either ran or
// did not. Triggers are not numbered: whichever is missing or differs from its file is written anew.
//
//go:embed migrations
var files embed.FS

// migration is one rendered file.
type migration struct {
	version int
	name    string // "orders"
	text    string
}

// trigger is one rendered trigger.
type trigger struct {
	name  string
	table string
	text  string // CREATE TRIGGER …
	body  string // what MySQL keeps of it, white space aside
}

// names is what the files' templates may use. Names come quoted.
type names struct {
	Orders, Activity, Inventory string
	Outbox, Sinks               string
	Item, Stock, Version        string
	Dead                        string // 'FAILED', 'CANCELLED', …
	Micros                      string
	MaxVersion                  int64
	HasInventory, HasVersion    bool
	Name                        string // of the trigger
}

func (c *Config) names() names {
	t := c.Tables
	return names{
		Orders: quote(t.Orders), Activity: quote(t.Activity), Inventory: quote(t.Inventory),
		Outbox: quote(t.Outbox), Sinks: quote(t.Outbox + sinksSuffix),
		Item: quote(t.Item), Stock: quote(t.Stock), Version: quote(t.Version),
		Dead: quoteStatuses(c.Dead), Micros: micros, MaxVersion: ledger.MaxNumber,
	}
}

func quoteStatuses(set []order.Status) string {
	quoted := make([]string, len(set))
	for i, s := range set {
		quoted[i] = "'" + string(s) + "'" // capital letters, digits and _ by Config.Validate
	}
	return strings.Join(quoted, ", ")
}

func render(file string, n names) (string, error) {
	src, err := files.ReadFile(file)
	if err != nil {
		return "", err
	}
	t, err := template.New(path.Base(file)).Option("missingkey=error").Parse(string(src))
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, n); err != nil {
		return "", err
	}
	return strings.TrimSpace(b.String()), nil
}

var numbered = regexp.MustCompile(`^(\d+)_(\w+)\.up\.sql$`)

// migrations renders the numbered files, in order.
func (c *Config) migrations(have found) ([]migration, error) {
	n := c.names()
	n.HasInventory, n.HasVersion = have.inventory.exists, have.inventory.version != ""
	entries, err := fs.ReadDir(files, "migrations")
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		m := numbered.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("embedded migration %q: want NUMBER_name.up.sql", e.Name())
		}
		version, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err
		}
		text, err := render("migrations/"+e.Name(), n)
		if err != nil {
			return nil, err
		}
		all = append(all, migration{version, m[2], text})
	}
	slices.SortFunc(all, func(a, b migration) int { return a.version - b.version })
	return all, nil
}

// triggers renders the triggers. Their names end like their files and begin like their tables, since a shop's database may hold
// several deployments under different table names.
func (c *Config) triggers() ([]trigger, error) {
	var all []trigger
	for _, t := range []struct{ file, table string }{
		{"inventory_bi", c.Tables.Inventory},
		{"inventory_bu", c.Tables.Inventory},
		{"orders_bu", c.Tables.Orders},
		{"orders_au", c.Tables.Orders},
	} {
		n := c.names()
		_, when, _ := strings.Cut(t.file, "_")
		name := t.table + "_seckill_" + when
		n.Name = quote(name)
		text, err := render("migrations/triggers/"+t.file+".sql", n)
		if err != nil {
			return nil, err
		}
		_, body, ok := strings.Cut(text, "FOR EACH ROW")
		if !ok {
			return nil, fmt.Errorf("embedded trigger %q: no FOR EACH ROW", t.file)
		}
		all = append(all, trigger{name, t.table, text, squeeze(body)})
	}
	return all, nil
}

// squeeze makes white space comparable.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }
