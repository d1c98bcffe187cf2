#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that tests on a real node need, if they are missing. Run it as root.
# A runc that `go install` builds lacks seccomp and fails when a container starts; Debian's containerd is too old for CDI.
set -euo pipefail

declare -A programs=(
	[runc]=/usr/sbin/runc
	[containernetworking-plugins]=/usr/lib/cni/ptp
	[busybox-static]=/bin/busybox
	[gcc]=/usr/bin/gcc
	[libc6-dev]=/usr/include/dlfcn.h
	[iproute2]=/sbin/ip
	[util-linux]=/usr/bin/nsenter
)

missing=()
for package in "${!programs[@]}"; do
	[[ -e ${programs[$package]} ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
	exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Package lists may be absent or older than the archive.
apt-get install --yes --no-install-recommends "${missing[@]}" ||
	{ apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; }
