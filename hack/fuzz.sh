#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for a time each: fuzz.sh [TIME], default 10s.
set -euo pipefail

fuzztime=${1:-10s}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# go test fuzzes one target of one package at a time. Lines look like "topology/capture/fuzz_test.go:func FuzzRead".
targets=$(git ls-files --cached --others --exclude-standard '*_test.go' |
	xargs -r grep -oHE '^func Fuzz[A-Za-z0-9_]*' | LC_ALL=C sort || true)
if [[ -z $targets ]]; then
	echo "no fuzz targets found" >&2
	exit 1
fi
while IFS=: read -r file target; do
	target=${target#func }
	dir=./$(dirname "$file")
	echo "fuzzing $target in $dir for $fuzztime"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" -fuzzminimizetime 100x "$dir"
done <<<"$targets"
