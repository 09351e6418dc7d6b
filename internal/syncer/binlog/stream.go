package binlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/schema"
	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Config bounds the stream. The zero value of each field means its default.
type Config struct {
	// ServerID is the id under which this syncer reads the log. It must differ from that of every server and replica; if
	// another reader turns up under it, one is drawn after all. Default: 0, drawn at random from a high range at each
	// connection, and checked where the privileges allow it.
	ServerID uint32 `yaml:"server_id"`
	// Flavor is mysql or mariadb. Default: as the server says. A wrong one is refused.
	Flavor string `yaml:"flavor"`
	// Heartbeat is how often an idle server is to say that it is still there. Default: 5s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// ReadTimeout is the silence after which the connection counts as lost; at least twice the heartbeat. Default: 15s.
	ReadTimeout time.Duration `yaml:"read_timeout"`
}

// SetDefaults fills what is zero.
func (c *Config) SetDefaults() {
	if c.Heartbeat == 0 {
		c.Heartbeat = 5 * time.Second
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = 15 * time.Second
	}
}

// Validate checks the configuration after SetDefaults.
func (c *Config) Validate() error {
	switch {
	case c.Flavor != "" && c.Flavor != mysql.MySQLFlavor && c.Flavor != mysql.MariaDBFlavor:
		return fmt.Errorf("binlog.flavor is %q: want mysql, mariadb or nothing (detected)", c.Flavor)
	case c.Heartbeat < 100*time.Millisecond:
		return fmt.Errorf("binlog.heartbeat is %s: want at least 100ms", c.Heartbeat)
	case c.ReadTimeout < 2*c.Heartbeat:
		return fmt.Errorf("binlog.read_timeout is %s: want at least twice binlog.heartbeat (%s)", c.ReadTimeout, c.Heartbeat)
	}
	return nil
}

// Stream reads the binary log of one server, one connection at a time.
type Stream struct {
	cfg      Config
	db       *sql.DB
	dsn      *driver.Config
	tables   Tables
	dead     []order.Status
	log      *zap.Logger
	lastRead atomic.Int64 // unix nanoseconds at which the connection last delivered bytes
	clashed  atomic.Bool  // another reader uses the configured server id
}

// New makes a stream of the database that dsn names. db is a pool on the same server, for questions. It does not dial.
func New(cfg Config, dsn *driver.Config, db *sql.DB, tables Tables, dead []order.Status, log *zap.Logger) (*Stream, error) {
	if dsn.Net != "tcp" && dsn.Net != "unix" {
		return nil, fmt.Errorf("mysql.dsn uses the network %q: want tcp or unix", dsn.Net)
	}
	return &Stream{cfg: cfg, db: db, dsn: dsn, tables: tables, dead: dead, log: log}, nil
}

// Silence is how long ago the connection last delivered anything, heartbeats included; 0 before the first connection.
func (s *Stream) Silence() time.Duration {
	at := s.lastRead.Load()
	if at == 0 {
		return 0
	}
	return time.Since(time.Unix(0, at))
}

// Note gives the position of now: whatever commits after the call lies behind it. The columns are read first, so that a
// DDL in between is met by the stream that starts there.
func (s *Stream) Note(ctx context.Context) (Position, error) {
	tables, err := readTables(ctx, s.db, s.dsn.DBName, s.tables)
	if err != nil {
		return Position{}, err
	}
	srv, err := s.ask(ctx)
	if err != nil {
		return Position{}, err
	}
	p := Position{Flavor: srv.flavor, GTID: srv.gtid, Server: srv.identity, Schema: fingerprint(tables)}
	p.File, p.Offset, err = showPosition(ctx, s.db, srv)
	return p, err
}

func (s *Stream) ask(ctx context.Context) (server, error) {
	srv, err := askServer(ctx, s.db)
	if err == nil && strings.Contains(srv.rowValues, "PARTIAL_JSON") {
		err = errors.New("mysql has binlog_row_value_options = PARTIAL_JSON, with which it writes rows that cannot be read: " +
			"run SET PERSIST binlog_row_value_options = '' and have the shop connect anew")
	}
	if err == nil && s.cfg.Flavor != "" && s.cfg.Flavor != srv.flavor {
		err = fmt.Errorf("binlog.flavor is %s but the server is %s (version %s): remove the setting, it is detected",
			s.cfg.Flavor, srv.flavor, srv.version)
	}
	return srv, err
}

// Check says in one line each what would keep the stream from working.
func (s *Stream) Check(ctx context.Context) error {
	_, err := s.Note(ctx)
	return err
}

// settled is how soon a server that does not want the position says so. An idle log says nothing else.
const settled = time.Second

// Run reads from the position until ctx ends (nil), the connection is lost, or the log cannot be trusted (ErrLoadAgain).
// started is called once the server has accepted the position.
func (s *Stream) Run(ctx context.Context, from Position, sink Sink, started func()) error {
	tables, err := readTables(ctx, s.db, s.dsn.DBName, s.tables)
	if err != nil {
		return err
	}
	srv, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if err := s.comparable(from, srv, fingerprint(tables)); err != nil {
		return err
	}
	net := &conns{stream: s}
	defer net.close()
	defer context.AfterFunc(ctx, net.close)()
	c, h, err := s.open(ctx, net, from, srv, tables, sink)
	if err != nil {
		return err
	}
	h.started, h.committedMs = sync.OnceFunc(started), from.CommittedAtMs
	if from.Server == srv.identity {
		h.file, h.offset = from.File, from.Offset
	}
	return s.run(ctx, c, h, from)
}

// comparable checks that the position still means what it meant when it was kept.
func (s *Stream) comparable(from Position, srv server, schemaNow string) error {
	switch {
	case from.IsZero():
		return fmt.Errorf("%w: there is no binlog position", ErrLoadAgain)
	case from.Flavor != srv.flavor:
		return fmt.Errorf("%w: the position is of %s and the server is %s", ErrLoadAgain, from.Flavor, srv.flavor)
	case from.Schema != schemaNow:
		return fmt.Errorf("%w: the columns of a watched table have changed since the position was kept", ErrLoadAgain)
	case from.GTID == "" && from.Server != srv.identity:
		return fmt.Errorf("%w: the position is of server %s and this is %s", ErrLoadAgain, from.Server, srv.identity)
	case from.GTID == "":
		return nil
	}
	here, err := mysql.ParseGTIDSet(srv.flavor, srv.gtid)
	if err != nil {
		return fmt.Errorf("the server's gtids %q are not readable: %w", srv.gtid, err)
	}
	ours, err := mysql.ParseGTIDSet(srv.flavor, from.GTID)
	if err != nil {
		return fmt.Errorf("%w: the position's gtids are not readable: %w", ErrLoadAgain, err)
	}
	if !here.Contain(ours) {
		return fmt.Errorf("%w: the server's gtids (%s) are behind the position (%s): it lost transactions, or is another server",
			ErrLoadAgain, srv.gtid, from.GTID)
	}
	return nil
}

// eventsAhead bounds what is read and not applied yet. An event has 8 KiB, or one row if that is larger: with Redis away that
// is what waits in memory, whatever MySQL writes (E55).
const eventsAhead = 128

func (s *Stream) open(ctx context.Context, net *conns, from Position, srv server, tables []*schema.Table, sink Sink) (*canal.Canal, *handler, error) {
	id, err := s.serverID(ctx)
	if err != nil {
		return nil, nil, err
	}
	cfg := &canal.Config{
		Addr: s.dsn.Addr, User: s.dsn.User, Password: s.dsn.Passwd, TLSConfig: s.dsn.TLS,
		ServerID: id, Flavor: srv.flavor, Charset: "utf8mb4",
		HeartbeatPeriod: s.cfg.Heartbeat, ReadTimeout: s.cfg.ReadTimeout,
		// The library's own retry resumes in the middle of a transaction. Run's caller starts anew from a kept position.
		DisableRetrySync: true, DisableFlushBinlogWhileWaiting: true,
		// Rows of other tables are not even decoded. Nothing that the syncer writes is among these three but a touched
		// row's version, which settles to itself: there is no feedback.
		IncludeTableRegex: s.includes(srv.lower),
		// Decimals as exact text: integer() refuses them, whatever their value.
		UseDecimal: true, EventCacheCount: eventsAhead, FillZeroLogPos: srv.flavor == mysql.MariaDBFlavor,
		Dialer: net.dial, Localhost: store.SyncerHost,
	}
	h := &handler{
		ctx: ctx, stream: s, sink: sink, flavor: srv.flavor, identity: srv.identity,
		schema: fingerprint(tables), lower: srv.lower, tx: &Transaction{},
	}
	if h.gtid, err = mysql.ParseGTIDSet(srv.flavor, from.GTID); err != nil {
		return nil, nil, fmt.Errorf("binlog position %s: %w", from, err)
	}
	cfg.Logger = newLibraryLog(s.log, h.unparsed)
	c, err := canal.NewCanal(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare to read the binlog: %w", err)
	}
	for _, t := range tables {
		database, name := s.dsn.DBName, t.Name
		if srv.lower {
			database, name = strings.ToLower(database), strings.ToLower(name)
		}
		c.SetTableCache([]byte(database), []byte(name), t)
	}
	c.SetEventHandler(h)
	return c, h, nil
}

// includes matches exactly the watched tables.
func (s *Stream) includes(lower bool) []string {
	var out []string
	anyCase := ""
	if lower {
		anyCase = "(?i)"
	}
	for _, t := range s.tables.names() {
		out = append(out, anyCase+"^"+regexp.QuoteMeta(s.dsn.DBName)+`\.`+regexp.QuoteMeta(t)+"$")
	}
	return out
}

// run owns the canal: it is closed, and its goroutines have ended, when run returns.
func (s *Stream) run(ctx context.Context, c *canal.Canal, h *handler, from Position) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.ctx, h.stop = inner, cancel
	ended := make(chan error, 1)
	go func() {
		if h.gtid != nil && !h.gtid.IsEmpty() {
			ended <- c.StartFromGTID(h.gtid.Clone())
			return
		}
		ended <- c.RunFrom(mysql.Position{Name: from.File, Pos: from.Offset})
	}()
	var err error
	quiet := time.NewTimer(settled)
	defer quiet.Stop()
	for running := true; running; {
		select {
		case <-quiet.C:
			h.started()
			continue
		case err = <-ended:
			c.Close()
		case <-inner.Done():
			c.Close()
			if e := <-ended; e != nil {
				s.log.Debug("the binlog connection was closed", zap.Error(e))
			}
			err = context.Cause(inner)
		}
		running = false
	}
	if ctx.Err() != nil {
		return nil
	}
	if f := h.failure(); f != nil {
		return f
	}
	err = classify(err)
	if errors.Is(err, errSameID) && s.cfg.ServerID != 0 && !s.clashed.Swap(true) {
		// To take it back would only have the two throw each other out by turns.
		s.log.Error(fmt.Sprintf("another reader of the binlog has binlog.server_id %d too: it is left to it, and one is drawn at random; "+
			"set another one, or none", s.cfg.ServerID))
	}
	return err
}

// errSameID: the server ended this connection because another one came with the same server id.
var errSameID = errors.New("another reader of the binlog came with the same server id")

// partialRows is how the library refuses an event. A stream that began there again would meet it for ever.
const partialRows = "PartialUpdateRowsEvent not supported"

// classify tells a log that is gone from a connection that is.
func classify(err error) error {
	if err == nil {
		return errors.New("the binlog stream ended without a reason")
	}
	var my *mysql.MyError
	switch {
	case strings.Contains(err.Error(), partialRows):
		return fmt.Errorf("%w: a session wrote rows with binlog_row_value_options = PARTIAL_JSON, which cannot be read", ErrLoadAgain)
	case !errors.As(err, &my):
	case sameServerID(my):
		return fmt.Errorf("%w: %w", errSameID, err)
	case my.Code == mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG:
		return fmt.Errorf("%w: the server no longer has the binlog at the position: %w", ErrLoadAgain, err)
	}
	return fmt.Errorf("the binlog stream ended: %w", err)
}
