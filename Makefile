# Everything that one does with this tree. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

.PHONY: services
services: ## start real Redis, MariaDB and Apache Kafka on free loopback ports; addresses in .services/env
	@scripts/services.sh start

.PHONY: services-stop
services-stop: ## stop them and throw their data away
	@scripts/services.sh stop

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
