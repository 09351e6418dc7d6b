# Everything that one does with this tree. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# The tags with which xcaddy builds: they leave out databases of Caddy's certificate authority that nobody here uses.
CADDY_TAGS := nobadger,nomysql,nopgx
GO_BUILD = go build -trimpath -ldflags '-s -w -X main.release=$(VERSION)'
CADDY_BUILD = go build -trimpath -tags $(CADDY_TAGS) \
	-ldflags '-s -w -X github.com/caddyserver/caddy/v2.CustomVersion=seckillgate-$(VERSION)'

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: ## the four binaries, into bin/: caddy, seckill-worker, seckill-syncer, seckill-drill
	@$(call there,cmd/caddy) && $(CADDY_BUILD) -o bin/caddy ./cmd/caddy
	@$(call there,worker) && $(GO_BUILD) -o bin/seckill-worker ./worker
	@$(call there,syncer) && $(GO_BUILD) -o bin/seckill-syncer ./syncer
	@$(call there,drill) && $(GO_BUILD) -o bin/seckill-drill ./drill
	@echo "bin/: caddy seckill-worker seckill-syncer seckill-drill ($(VERSION))"

.PHONY: xcaddy
xcaddy: ## bin/caddy as users build it, by xcaddy; `./xcaddy.sh --help` tells more
	@./xcaddy.sh

##@ Test

# One package or flag for a quick look: make test ARGS='-run E24 ./internal/ledger'
.PHONY: test
test: ## all tests with -race on real services, which it starts and stops; ARGS='-run E24 ./internal/…' for some
	@scripts/test.sh $(ARGS)

.PHONY: fuzz
fuzz: ## fuzz every parser of outside input, three at a time, each for FUZZTIME (default 60s)
	@scripts/fuzz.sh $(ARGS)

.PHONY: services
services: ## start real Redis, MariaDB and Apache Kafka on free loopback ports; addresses in .services/env
	@scripts/services.sh start

.PHONY: services-stop
services-stop: ## stop them and throw their data away
	@scripts/services.sh stop

.PHONY: model
model: ## the protocol's models: a million random steps over the real scripts, and SPIN; `make test` runs it too
	@model/check.sh

.PHONY: lint
lint: ## golangci-lint with our rules, in every module, and go.mod tidy
	@scripts/lint.sh

.PHONY: vuln
vuln: ## known vulnerabilities in what every module calls, by govulncheck; what may pass is in scripts/vuln-allow.txt
	@scripts/vuln.sh

##@ Prove

# One contest alone: make bench ARGS=Landing (or Refusals, Reservations)
.PHONY: bench
bench: ## benchmarks side by side, as ratios in one run, some minutes; ARGS=Landing for one of them
	@scripts/bench.sh $(ARGS)

.PHONY: chaos
chaos: build ## a sale while everything is killed, paused and cut at random; CHAOS_SEED, CHAOS_MINUTES, CHAOS_SETUP
	@scripts/chaos.sh

.PHONY: chaos-mutations
chaos-mutations: ## show that a short chaos run notices when a protection is taken out of the product
	@scripts/chaos.sh mutations

.PHONY: soak
soak: build ## sales at a steady rate for SOAK_MINUTES (default 30): does every process stay as it was?
	@scripts/chaos.sh soak

.PHONY: demo
demo: ## a whole sale with a sample shop, without root or containers; DEMO_EXIT=1 ends after the verdict
	@[[ -x .demo/bin/demo ]] || echo 'building the demo; on a fresh clone this and what follows take some minutes'
	@cd demo && go build -buildvcs=false -trimpath -ldflags '-s -w' -o ../.demo/bin/demo .
	@exec .demo/bin/demo

# there,FOLDER fails with one line when that part of the tree does not exist.
there = test -d $(1) || { echo 'make $@: $(1)/ is not written yet' >&2; exit 1; }
