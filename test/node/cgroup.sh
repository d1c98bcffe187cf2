#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What makes cgroups of both versions ready for a node, for warden.sh.

# delegate hands the controllers of a cgroup of version 2 down to those below it. At the top they may be there already, or
# there may be processes in the way.
delegate() {
	for controller in $(cat "$1/cgroup.controllers"); do
		echo "+$controller" >"$1/cgroup.subtree_control" || return 1
	done
}

# prepare_cgroup makes a cgroup that takes processes or, where it is not called "system", cgroups below it.
prepare_cgroup() {
	parent=${1%/*}
	if [ -e "$parent/cgroup.subtree_control" ] && [ ! -e "$1" ]; then
		delegate "$parent" 2>/dev/null || :
	fi
	mkdir -p "$1" || return 1
	if [ -e "$1/cgroup.controllers" ]; then
		# Where version 2 has controllers of its own, kubelets need all of these. Beside version 1 it has few or none.
		for controller in cpu memory pids; do
			if grep -qw "$controller" "$parent/cgroup.controllers" && ! grep -qw "$controller" "$1/cgroup.controllers"; then
				echo "\"$parent\" does not hand down the controller $controller: processes in it are in the way"
				return 1
			fi
		done
		[ "${1##*/}" = system ] || delegate "$1"
		return
	fi
	# A cgroup of version 1 takes no process before it has CPUs and memory nodes.
	for setting in cpuset.cpus cpuset.mems; do
		if [ -e "$1/$setting" ] && [ -z "$(cat "$1/$setting")" ]; then
			cat "$parent/$setting" >"$1/$setting" || return 1
		fi
	done
}
