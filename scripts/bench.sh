#!/usr/bin/env bash
# Runs the benchmarks on real services: uses those that are given or run already, starts the others, and stops what it
# started. A table per contest comes last. docs/benchmarks.md says what the figures mean.
#
#   scripts/bench.sh [PATTERN]     default: all of them. A pattern as of go test -bench, such as Refusals or Landing
#
# BENCH_ROUNDS and BENCH_TURN set how many rounds there are and how long a turn takes; BENCH_PROFILE=FOLDER has processor
# and allocation profiles of the gateway written there, one of each for each turn. BENCH_APPENDONLY=no has Redis keep no
# append-only file.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

use_services
cd "$root"
go test -run '^$' -bench "${1:-.}" -benchtime 1x -timeout 60m -p 1 ./caddymodule ./worker
