package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

var root = filepath.Join("..", "..")

// blocks gives the code blocks of a document that are in a language.
func blocks(t *testing.T, document, language string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```").FindAllStringSubmatch(string(b), -1) {
		out = append(out, m[1])
	}
	return out
}

// commands gives every line that a document tells its reader to type.
func commands(t *testing.T, document string) []string {
	t.Helper()
	var out []string
	for _, block := range blocks(t, document, "sh") {
		for line := range strings.Lines(block) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				out = append(out, line)
			}
		}
	}
	return out
}

// A reader types what README says, from top to bottom, and has a sale running. Both languages say the same commands.
func TestReadmeCommands(t *testing.T) {
	typed := commands(t, "README.md")
	translated := commands(t, "README.zh-CN.md")
	for i, line := range translated {
		translated[i] = strings.ReplaceAll(line, "月饼", "Moon cakes")
	}
	if !slices.Equal(typed, translated) {
		t.Fatalf("README.md and README.zh-CN.md differ:\n%s\n\n%s", strings.Join(typed, "\n"), strings.Join(translated, "\n"))
	}
	if len(typed) < 10 {
		t.Fatalf("found only these commands in README.md: %q", typed)
	}

	r := newReader(t)
	for _, line := range typed {
		r.types(line)
	}
	testenv.Eventually(t, time.Minute, "the shop's page and the sale answer", func() bool {
		shop, err := r.get("/index.html", "")
		if err != nil || shop.Text != "the shop, /index.html" {
			return false
		}
		sale, err := r.get("/seckill/1", "")
		return err == nil && sale.State == "not_started"
	})
	if r.ran < len(typed)-3 { // the three exports
		t.Fatalf("ran %d of %d commands", r.ran, len(typed))
	}
}

// The Caddyfiles in both READMEs are valid as they stand.
func TestReadmeCaddyfiles(t *testing.T) {
	for _, document := range []string{"README.md", "README.zh-CN.md"} {
		all := blocks(t, document, "caddyfile")
		if len(all) == 0 {
			t.Fatalf("%s has no caddyfile block", document)
		}
		for _, text := range all {
			file := filepath.Join(t.TempDir(), "Caddyfile")
			text = regexp.MustCompile("(?m)^   ").ReplaceAllString(text, "") // the list's indentation
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(bin, "caddy"), "validate", "--config", file)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", document, err, out)
			}
		}
	}
}

// reader types commands in a folder that looks like the checkout after `make build`.
type reader struct {
	*stack
	env []string
	ran int
}

func newReader(t *testing.T) *reader {
	t.Helper()
	s := &stack{T: t, dir: t.TempDir(), redis: testenv.StartRedis(t), dsn: testenv.MySQL(t)}
	s.site = fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
	if err := os.Mkdir(filepath.Join(s.dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, built := range map[string]string{"caddy": "caddy", "seckill-worker": "worker", "seckill-syncer": "syncer"} {
		if err := os.Symlink(filepath.Join(bin, built), filepath.Join(s.dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	r := &reader{stack: s}
	topic := fmt.Sprint("readme-", testenv.ID())
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SECKILL_") {
			r.env = append(r.env, v)
		}
	}
	r.env = append(r.env,
		"HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir, "XDG_DATA_HOME="+s.dir,
		// Names of this test alone on the shared broker, and ports that are free.
		"SECKILL_KAFKA_TOPICS_ORDERS="+topic, "SECKILL_KAFKA_TOPICS_DEAD_LETTERS="+topic+".dlq", "SECKILL_KAFKA_TOPICS_RESULTS="+topic+".results",
		"SECKILL_KAFKA_GROUP="+topic, "SECKILL_HTTP_LISTEN=off",
		"SHOP="+shop(t),
	)
	r.caddyfile(topic)
	return r
}

// caddyfile is the sample at the root with other ports and the test's own topic.
func (r *reader) caddyfile(topic string) {
	r.Helper()
	b, err := os.ReadFile(filepath.Join(root, "Caddyfile"))
	if err != nil {
		r.Fatal(err)
	}
	text := string(b)
	for from, to := range map[string]string{
		"\n:8080 {": "\n" + r.site + " {",
		"\n{\n":     fmt.Sprintf("\n{\n\tadmin 127.0.0.1:%d\n", testenv.FreePort(r)),
		"kafka {$SECKILL_KAFKA_BROKERS:127.0.0.1:9092}": "kafka {$SECKILL_KAFKA_BROKERS:127.0.0.1:9092} {\n\t\t\ttopic " + topic + "\n\t\t}",
	} {
		if strings.Count(text, from) != 1 {
			r.Fatalf("the sample Caddyfile does not hold %q once", from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "Caddyfile"), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

// types runs one line as a shell would, with this test's servers for those of README.
func (r *reader) types(line string) {
	r.Helper()
	if name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "="); ok && strings.HasPrefix(line, "export ") {
		mine := map[string]string{
			"SECKILL_REDIS_ADDRS": r.redis.Addr, "SECKILL_KAFKA_BROKERS": strings.Join(testenv.Brokers(r), ","), "SECKILL_MYSQL_DSN": r.dsn,
		}[name]
		if mine == "" {
			r.Fatalf("README exports %s=%s, which this test does not know", name, value)
		}
		r.env = append(r.env, name+"="+mine)
		return
	}
	r.ran++
	shell := func(line string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "exec "+line)
		cmd.Dir, cmd.Env = r.dir, r.env
		return cmd
	}
	program, _, _ := strings.Cut(strings.TrimPrefix(line, "bin/"), " ")
	if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "run" {
		p := testenv.StartProgram(r, program, func() *exec.Cmd { return shell(line) }, func() error { return nil })
		r.Cleanup(func() {
			if r.Failed() {
				r.Logf("%s:\n%s", line, last(p))
			}
		})
		return
	}
	var out []byte
	var err error
	// A reader looks again when `status` says that the syncer has only just begun.
	for deadline := time.Now().Add(30 * time.Second); ; {
		if out, err = shell(line).CombinedOutput(); err == nil || !strings.Contains(line, " status") || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		r.Fatalf("%s: %v\n%s", line, err, out)
	}
	r.Logf("$ %s\n%s", line, out)
}
