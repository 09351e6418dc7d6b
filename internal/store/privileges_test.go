package store

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

var grantText = regexp.MustCompile("GRANT [A-Z, ]+ ON (?:`[^`]+`\\.`[^`]+`|\\*\\.\\*) TO '[^']*'@'[^']*'")

// granted gives the statements that the check's findings name, but for those that are not this process's business.
func (b *bench) granted(notOurs string) (all []string) {
	b.t.Helper()
	found, err := b.Check(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range found {
		if f.Name != notOurs && f.Name != "privilege_binlog" {
			all = append(all, grantText.FindAllString(f.Text, -1)...)
		}
	}
	return all
}

// The check names exactly the right that is missing, as a statement that can be run as it stands.
func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t, "--log-bin-trust-function-creators=1")
	dsn := strings.Replace(server.DSN("shop"), "/shop", "/flash-sale_1", 1)
	root := &bench{Store: openStore(t, server.DSN("shop")), t: t}
	root.exec("CREATE DATABASE `flash-sale_1`")
	tables := func(c *Config) { c.Tables.Inventory, c.Tables.Stock, c.Tables.Item = "wares", "left", "ware" }
	admin := setupOn(t, dsn, 10, tables)
	as := func(user string) *bench {
		t.Helper()
		admin.exec("CREATE USER '" + user + "'@127.0.0.1 IDENTIFIED BY 'x'")
		d, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		d.User, d.Passwd = user, "x"
		return &bench{Store: openStore(t, d.FormatDSN(), tables), t: t, item: 7, activity: 70}
	}
	t.Run("one at a time", func(t *testing.T) {
		for _, c := range []struct {
			user, notOurs string
			needs         map[string]string
		}{
			{"worker", "privilege_sync", map[string]string{
				"orders": "SELECT, INSERT, UPDATE", "activity": "SELECT", "wares": "SELECT, UPDATE", "seckill_schema_migrations": "SELECT",
				"seckill_outbox": "SELECT, INSERT, DELETE", "seckill_outbox_sinks": "SELECT, INSERT, DELETE",
			}},
			{"syncer", "privilege_land", map[string]string{
				"orders": "SELECT", "activity": "SELECT, INSERT, UPDATE", "wares": "SELECT, INSERT, UPDATE", "seckill_schema_migrations": "SELECT",
			}},
		} {
			b := as(c.user)
			account := "'" + c.user + "'@'127.0.0.1'"
			for table, rights := range c.needs {
				admin.exec(fmt.Sprintf("GRANT %s ON `flash-sale_1`.%s TO %s", rights, table, account))
			}
			if got := b.granted(c.notOurs); len(got) != 0 {
				t.Fatalf("%s has all that it needs, and the check asks for %q", c.user, got)
			}
			for table, rights := range c.needs {
				for right := range strings.SplitSeq(rights, ", ") {
					want := fmt.Sprintf("GRANT %s ON `flash-sale_1`.`%s` TO %s", right, table, account)
					admin.exec(fmt.Sprintf("REVOKE %s ON `flash-sale_1`.%s FROM %s", right, table, account))
					if got := b.granted(c.notOurs); !slices.Equal(got, []string{want}) {
						t.Errorf("%s without %s on %s: the check asks for %q, want %q", c.user, right, table, got, want)
					}
					admin.exec(want)
				}
			}
			if got := b.granted(c.notOurs); len(got) != 0 {
				t.Errorf("%s has what was asked for, and the check asks for %q", c.user, got)
			}
		}
	})
	// An account that has nothing yet, and may only connect: whoever pastes what the check says is through in one go.
	for user, notOurs := range map[string]string{"new-worker": "privilege_sync", "new-syncer": "privilege_land"} {
		t.Run(user, func(t *testing.T) {
			b := as(user)
			admin.exec("GRANT SHOW VIEW ON `flash-sale_1`.* TO '" + user + "'@127.0.0.1")
			asked := b.granted(notOurs)
			for _, text := range asked {
				admin.exec(text)
			}
			if got := b.granted(notOurs); len(asked) == 0 || len(got) != 0 {
				t.Errorf("after %q the check still asks for %q", asked, got)
			}
		})
	}
}
