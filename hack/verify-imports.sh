#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks which packages of the module may depend on what; see docs/architecture.md. Tests may import more: only what is
# compiled into programs counts. Arguments go to `go list`, for example -overlay FILE.
#
# A rule is one line of
#   kind  packages  forbidden  exceptions  reason
# kind "any" looks at everything that a package depends on, also through others; "direct" only at its own imports.
# The other columns are extended regular expressions for whole import paths, relative to the module where they start with
# "./"; exceptions are taken out of packages. "-" matches nothing.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

rules() {
	cat <<'RULES'
any     \./topology(/.*)?               [^/]+\.[^/]+/.*|\./(api|cmd|driver|internal|plugins|webhook)(/.*)?  \./topology/topotest(/.*)?  topology uses the standard library and nothing else
any     \./api                          \./topology(/.*)?|k8s\.io/kubernetes/.*   -                                   the API types know neither the model nor Kubernetes' own code
any     \./api/.*                       k8s\.io/kubernetes/.*                     -                                   the wire contract must be usable by any client
any     \./plugins(/.*)?                \./(driver|webhook)(/.*)?                 -                                   plugins meet the driver only in ResourceSlices
any     \./cmd/scheduler(/.*)?          \./(driver|webhook)(/.*)?                 -                                   the scheduler meets the driver only in ResourceSlices
any     \./driver(/.*)?                 \./(plugins|webhook)(/.*)?                -                                   the driver meets the plugins only in ResourceSlices
any     \./cmd/driver(/.*)?             \./(plugins|webhook)(/.*)?                -                                   the driver meets the plugins only in ResourceSlices
any     \./webhook(/.*)?                \./(plugins|driver)(/.*)?                 -                                   the webhook meets the others only in the API
any     \./.*                           k8s\.io/kubernetes/.*                     \./(plugins|cmd/scheduler|test)(/.*)?  Kubernetes' own code is no library: only plugins and tests take it
direct  \./.*                           github\.com/NVIDIA/go-nv(ml|lib)/.*       \./driver/nvml(/.*)?  NVML has one home
direct  \./.*                           k8s\.io/dynamic-resource-allocation/structured(/.*)?  \./plugins/internal/kube(/.*)?  the allocator's types change with every release: one package touches them
any     \./.*                           \./test(/.*)?|\./topology/topotest(/.*)?|\./.*/internal/test(/.*)?  \./(test|topology/topotest|.*/internal/test)(/.*)?  programs hold no test code
any     \./sim(/.*)?                    \./(plugins|driver|webhook)(/.*)?         -                                   the simulator runs the planner, no program around it
RULES
}

# One line per package: its path, its direct imports, a bar, all its dependencies.
list=$(go list "$@" -f '{{.ImportPath}} {{join .Imports " "}} | {{join .Deps " "}}' ./...)

awk -v module="$(go list -m)" '
	function short(path) { return index(path "/", module "/") == 1 ? "." substr(path, length(module) + 1) : path }
	NR == FNR {
		n++
		kind[n] = $1; packages[n] = "^(" $2 ")$"; forbidden[n] = "^(" $3 ")$"; exceptions[n] = "^(" $4 ")$"
		$1 = $2 = $3 = $4 = ""; sub(/^ +/, ""); reason[n] = $0
		next
	}
	{
		package = short($1)
		for (r = 1; r <= n; r++) {
			if (package !~ packages[r] || package ~ exceptions[r]) continue
			direct = 1
			for (i = 2; i <= NF; i++) {
				if ($i == "|") { direct = 0; continue }
				if (direct != (kind[r] == "direct")) continue
				path = short($i)
				if (path ~ forbidden[r] && !(r SUBSEP package SUBSEP path in seen)) {
					seen[r, package, path]
					if (++shown[r, package] <= 3) print package " depends on " path ": " reason[r]
					bad = 1
				}
			}
		}
	}
	END { exit bad }
' <(rules) <(echo "$list") >&2 || { echo "import directions are violated; see the rules in ${0##*/}" >&2; exit 1; }
