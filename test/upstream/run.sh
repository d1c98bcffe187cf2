#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs Kubernetes' DRA integration suite with our scheduler plugin. Without
# arguments it runs everything; arguments are passed to the test binary, for example: run.sh -test.run 'TestDRA/all/PodGroup'
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
cd "$root"

if [ ! -x bin/etcd ]; then
	echo "run.sh: bin/etcd is missing: run 'make binaries' first" >&2
	exit 1
fi

kubernetes=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
suite=$here/.suite
go run ./test/upstream/generate "$kubernetes" "$suite"
# The suite imports modules that are no direct requirements of ours. A copy of
# go.mod takes them up, at the versions that Kubernetes selects anyway. Without
# debug information the binary of 250 MB links in half the time.
cp go.mod "$suite/modules.mod"
cp go.sum "$suite/modules.sum"
go test -mod=mod -modfile="$suite/modules.mod" -p 1 -vet=off -ldflags='-s -w' -c -o "$suite/dra.test" ./test/upstream/.suite/dra

# The suite starts etcd from PATH and keeps its data in TMPDIR. Some tests write
# thousands of objects, so memory is much faster than a disk that syncs.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# run NAME CONFIGURATIONS ARGUMENTS runs the binary, with its output in NAME.log.
run() {
	log=$suite/$1.log
	mkdir "$scratch/$1"
	TMPDIR=$scratch/$1
	TOPODRA_CONFIGURATIONS=$2
	shift 2
	# At its default verbosity, 5, the suite spends most of its time on writing logs.
	(
		cd "$suite/dra"
		export TMPDIR TOPODRA_CONFIGURATIONS
		KTESTING_VERBOSITY=${KTESTING_VERBOSITY:-1} PATH="$root/bin:$PATH" \
			"$suite/dra.test" -test.v -test.timeout 40m "$@"
	) >"$log" 2>&1 || {
		grep -E '^ *--- FAIL' "$log" || true
		tail -n 200 "$log"
		echo "run.sh: the suite failed, all output is in $log" >&2
		return 1
	}
	# Every test with its result, skipped ones too.
	grep -E '^ *--- (PASS|SKIP)' "$log"
}

if [ "$#" -gt 0 ]; then
	run arguments '' "$@"
	exit
fi

# One test expects the allocator to try until it times out on a node that has a
# device too few. Our plugin sees that by counting, so this test runs without it.
timeouts='TestDRA/.*/FilterTimeout'

# One after the other: some tests give a thousand pods 30 seconds, which two API
# servers on two cores do not keep.
status=0
run ga '^GA$' -test.skip "$timeouts" || status=1
run default '^default$' -test.skip "$timeouts" || status=1
run all '^all$' -test.skip "$timeouts" || status=1
(
	export TOPODRA_ASK_ALWAYS=1
	run timeouts '^(GA|default|all)$' -test.run "$timeouts"
) || status=1
exit "$status"
