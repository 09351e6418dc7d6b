package store

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Config says where MySQL is and what its tables are called. The worker and the syncer share it. The zero value of every
// field but DSN means its default.
type Config struct {
	// DSN is in the form of go-sql-driver/mysql: "user:password@tcp(127.0.0.1:3306)/shop". Parameters that the product depends on
	// (clientFoundRows, loc, rejectReadOnly, collation, multiStatements, …) are pinned whatever the DSN says.
	DSN string `yaml:"dsn" secret:"true"`

	// CAFile is a PEM file of the authorities to trust in place of the system's; it switches TLS on. Default: what the DSN says.
	CAFile string `yaml:"ca_file"`

	Tables Tables `yaml:"tables"`

	// SuccessStatus is the status of an order that has landed. Default: CONFIRMED. PAID for shops without a payment step.
	SuccessStatus order.Status `yaml:"success_status"`

	// Dead are the statuses of an order that holds neither stock nor its buyer's place. They are part of the schema: a list that
	// differs from what `migrate` wrote is refused by the start-up check. Default: FAILED, CANCELLED, EXPIRED, REFUNDED, CLOSED.
	Dead []order.Status `yaml:"dead_statuses"`

	// NoTriggers says that the schema was made by `migrate --no-triggers` and that the shop uses the documented SQL in place of
	// the triggers. Default: false.
	NoTriggers bool `yaml:"no_triggers"`

	// MaxConns bounds the connections of one process. Default: 16.
	MaxConns int `yaml:"max_conns"`

	// LockWait is how long a statement waits for a row lock, in whole seconds. Default: 3s.
	LockWait time.Duration `yaml:"lock_wait"`

	// StatementTimeout bounds one statement, COMMIT included; past it the outcome is unknown and is looked up. It must be
	// longer than LockWait. Default: 10s.
	StatementTimeout time.Duration `yaml:"statement_timeout"`

	// Tries is how often a batch is tried after deadlocks, lock timeouts and lost connections before Land gives the error
	// back to its caller. Default: 5.
	Tries int `yaml:"tries"`
}

// Tables are the names of the tables and of the columns of the shop's inventory. Names are letters, digits, _ and $.
type Tables struct {
	// Orders is this product's own table of orders; it must not be the shop's. Default: orders.
	Orders string `yaml:"orders"`
	// Activity is the table of flash sales. Default: activity.
	Activity string `yaml:"activity"`
	// Inventory is the table of stock, the shop's own where it has one. Default: inventory.
	Inventory string `yaml:"inventory"`
	// Item, Stock and Version are columns of Inventory: its primary key (BIGINT or narrower), the units left, and the column that
	// `migrate` adds. Defaults: item_id, stock, version.
	Item    string `yaml:"item_column"`
	Stock   string `yaml:"stock_column"`
	Version string `yaml:"version_column"`
	// Outbox holds what somebody still has to be told of an order; who listens is in a table of that name with _sinks behind it.
	// Default: seckill_outbox.
	Outbox string `yaml:"outbox"`
	// Migrations is where golang-migrate notes the schema's version. Default: seckill_schema_migrations.
	Migrations string `yaml:"migrations"`
}

// SetDefaults fills what is unset.
func (c *Config) SetDefaults() {
	c.Tables.Orders = cmp.Or(c.Tables.Orders, "orders")
	c.Tables.Activity = cmp.Or(c.Tables.Activity, "activity")
	c.Tables.Inventory = cmp.Or(c.Tables.Inventory, "inventory")
	c.Tables.Item = cmp.Or(c.Tables.Item, "item_id")
	c.Tables.Stock = cmp.Or(c.Tables.Stock, "stock")
	c.Tables.Version = cmp.Or(c.Tables.Version, "version")
	c.Tables.Outbox = cmp.Or(c.Tables.Outbox, "seckill_outbox")
	c.Tables.Migrations = cmp.Or(c.Tables.Migrations, "seckill_schema_migrations")
	c.SuccessStatus = cmp.Or(c.SuccessStatus, order.Confirmed)
	if len(c.Dead) == 0 {
		c.Dead = slices.Clone(order.DefaultDead)
	}
	c.MaxConns = cmp.Or(c.MaxConns, 16)
	c.LockWait = cmp.Or(c.LockWait, 3*time.Second)
	c.StatementTimeout = cmp.Or(c.StatementTimeout, 10*time.Second)
	c.Tries = cmp.Or(c.Tries, 5)
}

var (
	// Trigger names are built from table names and MySQL allows them 64 characters.
	identifier = regexp.MustCompile(`^[A-Za-z0-9_$]{1,40}$`)
	statusWord = regexp.MustCompile(`^[A-Z0-9_]{1,16}$`)
)

// Validate checks a configuration after SetDefaults. Each error begins with the key, as internal/config wants it, and names its
// value and what it should be.
func (c *Config) Validate() error {
	t := c.Tables
	names := []struct{ key, value string }{
		{"orders", t.Orders},
		{"activity", t.Activity},
		{"inventory", t.Inventory},
		{"migrations", t.Migrations},
		{"outbox", t.Outbox},
		{"item_column", t.Item},
		{"stock_column", t.Stock},
		{"version_column", t.Version},
	}
	for _, n := range names {
		if !identifier.MatchString(n.value) {
			return fmt.Errorf("tables.%s: %q: want 1 to 40 letters, digits, _ or $", n.key, n.value)
		}
	}
	for _, same := range [][]struct{ key, value string }{names[:5], names[5:]} {
		for i, a := range same {
			for _, b := range same[:i] {
				if a.value == b.value {
					return fmt.Errorf("tables.%s: %q: mysql.tables.%s has that name already", a.key, a.value, b.key)
				}
			}
		}
	}
	for i, s := range append([]order.Status{c.SuccessStatus}, c.Dead...) {
		if !statusWord.MatchString(string(s)) {
			key := "success_status"
			if i > 0 {
				key = "dead_statuses"
			}
			return fmt.Errorf("%s: %q: want 1 to %d capital letters, digits or _", key, s, order.MaxStatusBytes)
		}
	}
	if !order.Failed.In(c.Dead) {
		return fmt.Errorf("dead_statuses: %v: must contain %s, which the worker writes", c.Dead, order.Failed)
	}
	if c.SuccessStatus.In(c.Dead) {
		return fmt.Errorf("success_status: %s: it is one of mysql.dead_statuses", c.SuccessStatus)
	}
	if c.MaxConns < 2 {
		return fmt.Errorf("max_conns: %d: want at least 2", c.MaxConns)
	}
	if c.LockWait < time.Second || c.LockWait%time.Second != 0 {
		return fmt.Errorf("lock_wait: %s: want whole seconds, at least 1s", c.LockWait)
	}
	if c.StatementTimeout <= c.LockWait {
		return fmt.Errorf("statement_timeout: %s: want more than mysql.lock_wait %s", c.StatementTimeout, c.LockWait)
	}
	if c.Tries < 1 {
		return fmt.Errorf("tries: %d: want at least 1", c.Tries)
	}
	_, err := c.driver()
	return err
}

// plainName is a name of a user or a database that nobody need doubt.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.$-]+$`)

// Shown gives what may be shown of secret keys: of the DSN who goes where. Its password is hidden and so are its parameters; where it is
// not of the usual form, and could be misread, nothing is shown.
func (c Config) Shown() map[string]string {
	d, err := c.driver()
	if err != nil || misread(c.DSN) || d.Net != "tcp" && d.Net != "unix" || !plainName.MatchString(d.User) || !plainName.MatchString(d.DBName) {
		return nil
	}
	password, parameters := "", ""
	if d.Passwd != "" {
		password = ":***"
	}
	if strings.HasPrefix(c.DSN[strings.LastIndexByte(c.DSN, '/')+1:], d.DBName+"?") {
		parameters = "?***"
	}
	return map[string]string{"dsn": d.User + password + "@" + d.Net + "(" + d.Addr + ")/" + d.DBName + parameters}
}

// misread says that the driver may take a part of the password for something else: it looks for the password before the last slash.
func misread(dsn string) bool {
	return strings.LastIndexByte(dsn, '@') > strings.LastIndexByte(dsn, '/')
}

const formOfDSN = "user:password@tcp(host:3306)/database"

// driver gives the driver's configuration, with everything pinned that correctness depends on.
func (c *Config) driver() (*mysql.Config, error) {
	if c.DSN == "" {
		return nil, errors.New("dsn: it is empty: want " + formOfDSN)
	}
	d, err := mysql.ParseDSN(c.DSN)
	if err != nil {
		// The driver looks for the database behind the last slash, and repeats what it takes for names.
		if misread(c.DSN) {
			return nil, errors.New("dsn: no /database follows its last @: want " + formOfDSN)
		}
		return nil, fmt.Errorf("dsn: %w: want %s", err, formOfDSN)
	}
	if d.DBName == "" {
		return nil, errors.New("dsn: it names no database: want " + formOfDSN)
	}
	d.ClientFoundRows = false // affected rows are rows that changed (E64)
	d.RejectReadOnly = true   // a demoted primary costs the connection, so that the next one finds the new primary (E68)
	d.Loc = time.UTC          // no time column is ever read; were one, it would not be shifted (E70)
	d.Collation = "utf8mb4_bin"
	d.InterpolateParams = true // one round trip a statement; safe with utf8mb4
	d.MultiStatements = false
	d.CheckConnLiveness = true
	d.AllowOldPasswords = false
	d.Logger = &mysql.NopLogger{} // it would write to stderr what every call returns as an error anyway
	// What the sessions depend on is set by the connector; anything that the DSN says of it would be set before and be lost.
	d.Timeout = cmp.Or(d.Timeout, 5*time.Second)
	d.ReadTimeout = cmp.Or(d.ReadTimeout, c.StatementTimeout+time.Second)
	d.WriteTimeout = cmp.Or(d.WriteTimeout, c.StatementTimeout+time.Second)
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no PEM certificate", c.CAFile)
		}
		if d.TLS == nil {
			d.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		d.TLS.RootCAs = pool
	}
	return d, nil
}
