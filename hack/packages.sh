#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the packages of one test group, one per line. Every package of the module is in exactly one of the first three:
#   process         below test/, or tested with what is there: starts processes
#   kube            links k8s.io/kubernetes: its test binaries are big
#   pure            the rest
#   kube-libraries  what of "kube" is no program: compiling it needs no linking
set -euo pipefail

if [[ $# -ne 1 || ! $1 =~ ^(process|kube|pure|kube-libraries)$ ]]; then
	echo "usage: ${0##*/} process|kube|pure|kube-libraries" >&2
	exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
module=$(go list -m)

go list -f '{{.ImportPath}} {{.Name}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... |
	awk -v wanted="$1" -v tests="$module/test/" '
		{
			group = "pure"
			if (index($0, " k8s.io/kubernetes/")) group = "kube"
			if (index($1 "/", tests) == 1 || index($0, " " tests)) group = "process"
			if (group == wanted || wanted == "kube-libraries" && group == "kube" && $2 != "main") print $1
		}'
