#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs Kubernetes' DRA integration suite with our scheduler plugin. Arguments are
# passed to the test binary, for example: run.sh -test.run 'TestAll/all/PodGroup'
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
# go.mod takes them up, at the versions that Kubernetes selects anyway.
cp go.mod "$suite/modules.mod"
cp go.sum "$suite/modules.sum"
go test -mod=mod -modfile="$suite/modules.mod" -p 1 -c -o "$suite/dra.test" ./test/upstream/.suite/dra

# The suite starts etcd from PATH and keeps its data in TMPDIR. Some tests write
# thousands of objects, so memory is much faster than a disk that syncs.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$suite/output.log
status=0
(
	cd "$suite/dra"
	PATH="$root/bin:$PATH" TMPDIR="$scratch" "$suite/dra.test" -test.v -test.timeout 30m "$@"
) >"$log" 2>&1 || status=$?

# Every test with its result, skipped ones too.
grep -E '^ *--- (PASS|FAIL|SKIP)' "$log" || true
if [ "$status" -ne 0 ]; then
	tail -n 200 "$log"
	echo "run.sh: the suite failed, all output is in $log" >&2
fi
exit "$status"
