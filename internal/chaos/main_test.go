package chaos

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, testenv.KnownLeaks()...)
}
