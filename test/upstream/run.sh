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

# The suite starts etcd from PATH and leaves its data in TMPDIR.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$suite/dra"
PATH="$root/bin:$PATH" TMPDIR="$scratch" "$suite/dra.test" -test.timeout 20m "$@"
