#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Outlives whoever started a node, and leaves nothing of that node behind.
#
#   warden.sh DIRECTORY... -- CGROUP...
#
# It makes the cgroups and the mount namespace of the node, and prints "ready PID", where /proc/PID/ns/mnt is the
# namespace. Then it waits for the end of its standard input, which the kernel closes when the launcher dies, however that
# happens. It kills whatever is in the cgroups, removes them and the directories, puts kernel settings back, and prints
# "clean", or what it could not remove, with status 1. The functions of cgroup.sh come before it.
# A line on its standard input before the end is a command:
#   kill CGROUP   kills what is in a cgroup and those below, prints "done" or what is wrong
#   keep          only the first directory is to be removed: the launcher lives and sees to the others
set -u
# Whoever wants the launcher's end must not take the warden along.
trap '' HUP INT TERM PIPE

dirs=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case $1 in
	/*[!A-Za-z0-9/_.-]* | [!/]*) echo "directory \"$1\" is not absolute or has unusual characters"; exit 1 ;;
	esac
	dirs="$dirs $1"
	shift
done
shift
# From here on, "$@" are the cgroups.

# What kubelets and network plugins set for the whole machine.
settings='vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes net/ipv4/ip_forward'

# Standing orders need one node at a time: the next one waits here. The lock ends with this process.
exec 8</sys/fs/cgroup
flock --wait 900 8 || { echo 'another node has been running for 15 minutes: stop it first'; exit 1; }

saved=$(for s in $settings; do [ -r "/proc/sys/$s" ] && echo "$s=$(cat "/proc/sys/$s")"; done)

# processes prints the ids of what runs in the cgroups that are given and below them.
processes() {
	for group in "$@"; do
		[ -d "$group" ] && find "$group" -name cgroup.procs -exec cat {} +
	done 2>/dev/null | sort -un
}

# empty kills what is in the cgroups until nothing is.
empty() {
	tries=0
	while pids=$(processes "$@"); [ -n "$pids" ]; do
		# shellcheck disable=SC2086 # one id per word
		kill -KILL $pids 2>/dev/null
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "processes $(echo $pids) cannot be killed"; return 1; }
		sleep 0.1
	done
}

remove_cgroups() {
	for group in "$@"; do
		tries=0
		while [ -d "$group" ]; do
			find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
			tries=$((tries + 1))
			[ $tries -lt 100 ] || { echo "cgroup \"$group\" cannot be removed"; return 1; }
			[ ! -d "$group" ] || sleep 0.1
		done
	done
}

# remove_directory tries more than once: processes that die with the launcher may write into it to their end.
remove_directory() {
	tries=0
	while ! said=$(rm -rf --one-file-system -- "$1" 2>&1); do
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "$said"; return 1; }
		sleep 0.1
	done
}

clean() {
	exec 2>&1
	failed=0
	empty "$@" || failed=1
	[ -z "${holder:-}" ] || { kill -KILL "$holder"; wait "$holder"; } 2>/dev/null
	remove_cgroups "$@" || failed=1
	# The node's mounts are gone with their namespace. One in this namespace must not be walked into.
	for dir in $dirs; do
		if grep -q " $dir/" /proc/self/mountinfo; then
			echo "something is mounted below \"$dir\": left as it is"
			failed=1
		else
			remove_directory "$dir" || failed=1
		fi
	done
	for pair in $saved; do
		[ "$(cat "/proc/sys/${pair%%=*}")" = "${pair#*=}" ] || echo "${pair#*=}" >"/proc/sys/${pair%%=*}" || failed=1
	done
	[ $failed -eq 0 ] && echo clean
	exit $failed
}

for group in "$@"; do
	for path in "$group" "$group/system" "$group/pods"; do
		said=$(prepare_cgroup "$path" 2>&1) || { echo "cgroup \"$path\" cannot be made: $said"; clean "$@"; }
	done
done

# Mounts of the node, and what its programs put into well-known directories, exist in a namespace only, and end with it.
first=${dirs# }
first=${first%% *}
mounted=$first/mounted
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --mount --propagation private -- sh -c '
	for dir in /run /var/lib /var/log; do
		mount -t tmpfs -o mode=755,size=256m topodra-node "$dir" || exit 1
	done
	mkdir -p /run/lock /var/lib/kubelet
	: >"$1"
	exec sleep infinity' holder "$mounted" </dev/null 8<&- &
holder=$!
tries=0
until [ -e "$mounted" ]; do
	tries=$((tries + 1))
	if [ $tries -gt 300 ] || ! kill -0 "$holder"; then
		echo 'the mount namespace cannot be made'
		clean "$@"
	fi
	sleep 0.1
done
echo "ready $holder"

while read -r command argument; do
	case $command in
	kill) empty "$argument" && echo "done" ;;
	keep) dirs=$first && echo "done" ;;
	*) echo "unknown command \"$command\"" ;;
	esac
done
clean "$@"
