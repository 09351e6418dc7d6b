package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Recognizable secrets, one of each kind.
var secrets = map[string]string{
	"the password of redis":          "redis-7f3a91",
	"the password of the sentinels":  "sentinel-7f3a92",
	"the password of kafka":          "kafka-7f3a93",
	"the password of mysql":          "mysql-7f3a94",
	"the secret of the webhook":      "whsec_" + base64.StdEncoding.EncodeToString([]byte("webhook-7f3a95-webhook-7f3a95")),
	"the token in the webhook's URL": "token-7f3a96",
	"the headers for the collector":  "otel-7f3a97",
	"the password of the collector":  "collector-7f3a98",
}

// TestSecretsStaySecret: with secrets everywhere, and every system away, refusing or misspelt, no program writes one of them, and
// the gateway's own admin API and metrics do not have them.
func TestSecretsStaySecret(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "drill"), "./drill")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build drill: %v\n%s", err, out)
	}
	mysql := strings.SplitN(testenv.MySQL(t), "@", 2)[1]
	kafka := testenv.Brokers(t)[0]
	for name, at := range map[string]struct{ redis, kafka, mysql, webhook string }{
		"they refuse":      {testenv.RedisAddr(t), kafka, "seckill:" + secrets["the password of mysql"] + "@" + mysql, "http://127.0.0.1:1/hook"},
		"they are away":    {"127.0.0.1:1", "127.0.0.1:1", "seckill:" + secrets["the password of mysql"] + "@tcp(127.0.0.1:1)/shop", "http://127.0.0.1:1/hook"},
		"no such host":     {"redis.invalid:1", "kafka.invalid:1", "seckill:" + secrets["the password of mysql"] + "@tcp(mysql.invalid:1)/shop", "http://shop.invalid/hook"},
		"redis misspelt":   {"redis://:" + secrets["the password of redis"] + "@127.0.0.1:1", kafka, "seckill:x@" + mysql, "http://127.0.0.1:1/"},
		"kafka misspelt":   {"127.0.0.1:1", "user:" + secrets["the password of kafka"] + "@127.0.0.1:1", "seckill:x@" + mysql, "http://127.0.0.1:1/"},
		"mysql misspelt":   {"127.0.0.1:1", kafka, "mysql://seckill:" + secrets["the password of mysql"] + "@127.0.0.1:1/shop", "http://127.0.0.1:1/"},
		"webhook misspelt": {"127.0.0.1:1", kafka, "seckill:x@" + mysql, "http://shop:" + secrets["the token in the webhook's URL"] + "@127.0.0.1:1/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &secretive{T: t, dir: t.TempDir(), env: append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir,
				"SECKILL_REDIS_ADDRS="+at.redis, "SECKILL_REDIS_USERNAME=seckill", "SECKILL_REDIS_PASSWORD="+secrets["the password of redis"],
				"SECKILL_REDIS_SENTINEL_PASSWORD="+secrets["the password of the sentinels"],
				"SECKILL_KAFKA_BROKERS="+at.kafka, "SECKILL_KAFKA_SASL_MECHANISM=SCRAM-SHA-256", "SECKILL_KAFKA_SASL_USER=seckill",
				"SECKILL_KAFKA_SASL_PASSWORD="+secrets["the password of kafka"],
				"SECKILL_MYSQL_DSN="+at.mysql, "SECKILL_LOG_LEVEL=debug",
				"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:"+secrets["the password of the collector"]+"@127.0.0.1:1",
				"OTEL_EXPORTER_OTLP_HEADERS=authorization="+secrets["the headers for the collector"],
			)}
			worker := []string{
				"SECKILL_WEBHOOK_URL=" + at.webhook + "?token=" + secrets["the token in the webhook's URL"],
				"SECKILL_WEBHOOK_SECRETS=" + secrets["the secret of the webhook"], fmt.Sprintf("SECKILL_HTTP_LISTEN=127.0.0.1:%d", testenv.FreePort(t)),
			}
			syncer := []string{fmt.Sprintf("SECKILL_HTTP_LISTEN=127.0.0.1:%d", testenv.FreePort(t))}
			var all sync.WaitGroup
			for _, c := range []struct {
				words string
				env   []string
			}{
				{"worker config check", worker},
				{"worker run", worker},
				{"worker dlq list", nil},
				{"worker migrate --create-topics", nil},
				{"syncer config check", syncer},
				{"syncer run", syncer},
				{"syncer status", nil},
				{"drill check --activity 1 --wait 1s", nil},
			} {
				all.Go(func() { s.look(c.words, s.run(c.words, c.env...)) })
			}
			all.Go(func() { s.gateway(at.redis, at.kafka) })
			all.Wait()
		})
	}
}

type secretive struct {
	*testing.T
	dir string
	env []string
}

// run gives what a program writes until it ends, or for ten seconds, or until it has written anything at all where that takes longer.
func (s *secretive) run(words string, env ...string) string {
	args := strings.Fields(words)
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, args[0]), args[1:]...)
	cmd.Env = append(append([]string{}, s.env...), env...)
	cmd.Dir = s.dir
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	enough := time.AfterFunc(10*time.Second, func() {
		for out.String() == "" && ctx.Err() == nil {
			<-time.After(10 * time.Millisecond)
		}
		cancel()
	})
	defer enough.Stop()
	if err := cmd.Run(); err == nil && ctx.Err() == nil && !strings.Contains(words, "validate") {
		s.Errorf("%s went well: what should fail here?\n%s", words, out.String())
	}
	if ctx.Err() != nil {
		return out.String() + "(it was still waiting)"
	}
	return out.String()
}

// output is read while a program still writes it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (s *secretive) look(what, text string) {
	if text == "" {
		s.Errorf("%s wrote nothing at all", what)
	}
	for name, secret := range secrets {
		if i := strings.Index(text, secret); i >= 0 {
			s.Errorf("%s shows %s: …%s…", what, name, text[max(0, i-200):min(len(text), i+len(secret)+60)])
		}
	}
}

// gateway starts, answers buyers and its administrator, and writes its log.
func (s *secretive) gateway(redis, kafka string) {
	site, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(s)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(s))
	caddyfile := filepath.Join(s.dir, "Caddyfile")
	text := fmt.Sprintf(`{
	admin %s
	debug
	metrics
	seckill {
		redis %s {
			username seckill
			password %s
			sentinel_password %s
		}
		kafka %s {
			sasl SCRAM-SHA-256 seckill %s
		}
	}
}
http://%s {
	tracing
	seckill {
		user {header.X-User}
	}
	metrics /metrics
}
`, admin, redis, secrets["the password of redis"], secrets["the password of the sentinels"], kafka, secrets["the password of kafka"], site)
	if err := os.WriteFile(caddyfile, []byte(text), 0o600); err != nil {
		s.Error(err)
		return
	}
	s.look("caddy validate", s.run("caddy validate --config "+caddyfile))
	var asked sync.WaitGroup
	asked.Go(func() {
		for _, url := range []string{"http://" + site + "/seckill/1", "http://" + site + "/metrics", "http://" + admin + "/seckill/", "http://" + admin + "/seckill/producer", "http://" + admin + "/metrics"} {
			for end := time.Now().Add(8 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
				resp, err := client.Get(url)
				if err != nil {
					continue // it is not up yet, or does not start at all
				}
				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				s.look(url, resp.Status+string(b))
				break
			}
		}
		resp, err := client.Post("http://"+site+"/seckill/1/orders", "application/json", strings.NewReader("{}"))
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			s.look("an order", resp.Status+string(b))
		}
	})
	s.look("caddy run", s.run("caddy run --config "+caddyfile))
	asked.Wait()
}
