package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestMain clears what `make test` sets for the product's own programs: here every variable is the test's.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "SECKILL_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

type redisSection struct {
	Addrs    []string      `yaml:"addrs"`
	Password string        `yaml:"password"`
	Timeout  time.Duration `yaml:"timeout"`
	Pool     int           `yaml:"pool_size"`
}

func (r *redisSection) SetDefaults() {
	if r.Pool == 0 {
		r.Pool = 10
	}
}

func (r *redisSection) Validate() error {
	if len(r.Addrs) == 0 {
		return errors.New("addrs: none given: list at least one host:port")
	}
	if r.Pool < 0 {
		return fmt.Errorf("pool_size: %d is negative: use at least 1", r.Pool)
	}
	return nil
}

type hook struct {
	URL   string `yaml:"url"`
	Tries uint8  `yaml:"tries"`
}

type settings struct {
	Redis redisSection `yaml:"redis"`
	MySQL struct {
		DSN string `yaml:"dsn"`
	} `yaml:"mysql"`
	Hooks   []hook            `yaml:"hooks"`
	Labels  map[string]string `yaml:"labels"`
	Ratio   float64           `yaml:"ratio"`
	Debug   bool              `yaml:"debug"`
	Limit   *int              `yaml:"limit"`
	Numbers []int             `yaml:"numbers"`
	Ignored string            `yaml:"-"`
	hidden  string            //nolint:unused // must not be touched
}

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	path := write(t, `
# a comment
redis:
  addrs: [a:1, b:2]
  timeout: 250ms
mysql:
  dsn: "u:p@tcp(h)/d"
hooks:
  - {url: x, tries: 3}
  - url: y
labels: {k: v}
debug: true
limit:
`)
	t.Setenv("SECKILL_REDIS_ADDRS", "c:3, d:4,")
	t.Setenv("SECKILL_RATIO", "0.5")
	t.Setenv("SECKILL_DEBUG", "")
	t.Setenv("SECKILL_LIMIT", "1_000")
	t.Setenv("SECKILL_NUMBERS", "1,2")
	got := settings{Ignored: "as it was"}
	got.Redis.Timeout = time.Hour
	if err := Load(path, &got); err != nil {
		t.Fatal(err)
	}
	limit := 1000
	want := settings{
		Redis: redisSection{Addrs: []string{"c:3", "d:4"}, Timeout: 250 * time.Millisecond, Pool: 10},
		Hooks: []hook{{"x", 3}, {"y", 0}}, Labels: map[string]string{"k": "v"}, Ratio: 0.5, Debug: true, Limit: &limit,
		Numbers: []int{1, 2}, Ignored: "as it was",
	}
	want.MySQL.DSN = "u:p@tcp(h)/d"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestLoadFromEnvironmentAlone(t *testing.T) {
	t.Setenv("SECKILL_REDIS_ADDRS", "c:3")
	var got settings
	if err := Load("", &got); err != nil || got.Redis.Pool != 10 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A zero that stays what it is has been given for good, and so has one that something else replaces.
func TestZeroIsAValue(t *testing.T) {
	t.Setenv("SECKILL_REDIS_POOL_SIZE", "3")
	got := settings{Ratio: 0.5}
	if err := Load(write(t, "redis: {addrs: [a], timeout: 0s, pool_size: 0}\nratio: 0\n"), &got); err != nil || got.Ratio != 0 || got.Redis.Pool != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestErrorsNameOriginKeyValueAndRemedy(t *testing.T) {
	for _, c := range []struct{ yaml, env, want string }{
		{"redis:\n  addr: [a]\n", "", `test.yaml:2: unknown key "addr" in redis: want one of addrs, password, timeout, pool_size`},
		{"redus: {}\n", "", `test.yaml:1: unknown key "redus" in the top level: want one of redis, mysql`},
		{"hooks:\n- url: x\n  trie: 1\n", "", `test.yaml:3: unknown key "trie" in hooks[0]`},
		{"debug: true\ndebug: true\n", "", `test.yaml:2: key "debug" is given twice: remove one, the other is in line 1`},
		{"redis:\n  timeout: 5\n", "", `test.yaml:2: redis.timeout: "5" is not a duration: write it with its unit, like 500ms, 5s or 1h30m`},
		{"redis: 5\n", "", `test.yaml:1: redis is not a section`},
		{"redis:\n  pool_size: ten\n", "", `test.yaml:2: redis.pool_size: "ten" is not a whole number`},
		{"hooks: [{tries: 256}]\n", "", `test.yaml:1: hooks[0].tries: "256" is not a whole number from 0 to 255`},
		{"redis:\n  addrs: {a: b}\n", "", `test.yaml:2: redis.addrs: line 2: cannot unmarshal !!map into []string`},
		{"debug: maybe\n", "", `test.yaml:1: debug: "maybe" is not true or false`},
		{"a: b: c\n", "", `test.yaml: yaml: `},
		{"redis: {}\n", "", `test.yaml:1: redis.addrs: none given: list at least one host:port`},
		{"debug: true\n", "", `redis.addrs: none given: list at least one host:port (it is set nowhere; its variable is SECKILL_REDIS_ADDRS)`},
		{"redis:\n  addrs: [a]\n  pool_size: -1\n", "", `test.yaml:3: redis.pool_size: -1 is negative: use at least 1`},
		{"redis:\n  addrs: [a]\n", "SECKILL_REDIS_POOL_SIZE=-2", `SECKILL_REDIS_POOL_SIZE: redis.pool_size: -2 is negative`},
		{"redis:\n  addrs: [a]\n  pool_size: 0\n", "", `test.yaml:3: redis.pool_size: 0 is no value of it: leave the key out for the default, 10, or give another value`},
		{"redis:\n  addrs: [a]\n  pool_size: 5\n", "SECKILL_REDIS_POOL_SIZE=0", `SECKILL_REDIS_POOL_SIZE: redis.pool_size: 0 is no value of it`},
		{"", "SECKILL_REDIS_TIMEOUT=5", `SECKILL_REDIS_TIMEOUT: redis.timeout: "5" is not a duration`},
		{"", "SECKILL_NUMBERS=1,x", `SECKILL_NUMBERS: numbers: "x" is not a whole number`},
	} {
		t.Run(c.want, func(t *testing.T) {
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			path := write(t, c.yaml)
			err := Load(path, new(settings))
			if err == nil || !strings.HasPrefix(strings.TrimPrefix(err.Error(), filepath.Dir(path)+"/"), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	if err := Load(filepath.Join(t.TempDir(), "absent.yaml"), new(settings)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := Load("", settings{}); err == nil {
		t.Error("a struct that is no pointer is accepted")
	}
}

func TestUnknownEnv(t *testing.T) {
	for _, name := range []string{
		"SECKILL_REDIS_ADDRS", "SECKILL_REDIS_ADDR", "SECKILL_OTHER", "SECKILL_WORKER_SERVICE_HOST", "SECKILL_WORKER_PORT_80_TCP_ADDR",
	} {
		t.Setenv(name, "x")
	}
	got := strings.Join(UnknownEnv(new(settings)), ",")
	if !strings.Contains(got, "SECKILL_OTHER") || !strings.Contains(got, "SECKILL_REDIS_ADDR") ||
		strings.Contains(got, "ADDRS") || strings.Contains(got, "WORKER") {
		t.Errorf("unknown variables %s", got)
	}
}

func TestExplainRedacts(t *testing.T) {
	s := settings{Redis: redisSection{Addrs: []string{"a:1"}, Password: "hunter2", Timeout: 5 * time.Second, Pool: 10}}
	s.MySQL.DSN = "u:hunter2@x@tcp(h:3306)/d?parseTime=true"
	s.Labels = map[string]string{"url": "https://me:hunter2@host/", "api_token": "hunter2"}
	s.Hooks = []hook{{URL: "https://hunter2@host"}, {URL: "https://host/hook?key=hunter2&v=1"}, {URL: "http://me:hunter2@host/hook?hunter2"}}
	var out bytes.Buffer
	if err := Explain(&s, &out); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if strings.Count(got, "hunter2") != 1 { // a user name is no secret
		t.Errorf("a secret is shown:\n%s", got)
	}
	for _, want := range []string{
		"addrs: ['a:1'] # SECKILL_REDIS_ADDRS", "timeout: 5s # SECKILL_REDIS_TIMEOUT", "u:***@tcp(h:3306)/d?parseTime=true", "https://me:***@host/",
		"https://host/hook?***", "http://me:***@host/hook?***",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	var again settings
	if err := Load(write(t, got), &again); err != nil || again.Redis.Timeout != 5*time.Second {
		t.Errorf("what Explain prints cannot be loaded: %v\n%s", err, got)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("redis: {addrs: [a], timeout: 5s}\nhooks: [{url: x}]\n", "a,b")
	f.Add("a: &a [*a]\nlabels: &l {x: *l}\n", "{")
	f.Add("redis: &r {addrs: &b [x]}\nmysql: *r\nhooks: [*r, null, []]\n", ",")
	f.Add("? [a]\n: b\n--- \nx", "\x00")
	f.Fuzz(func(t *testing.T, text, env string) {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var s settings
		err := Load(path, &s)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a message")
			}
			return
		}
		if len(s.Redis.Addrs) == 0 {
			t.Error("an invalid configuration is accepted")
		}
		if err := Explain(&s, new(bytes.Buffer)); err != nil {
			t.Errorf("explain: %v", err)
		}
		_ = fromText(env, reflect.ValueOf(&s).Elem().FieldByName("Labels"))
		_ = fromText(env, reflect.ValueOf(&s).Elem().FieldByName("Numbers"))
	})
}
