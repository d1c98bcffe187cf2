#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks at the real GPUs of this machine and leaves a recording in $OUT (default: bin/gpu). Takes less than five minutes, changes
# nothing on the machine, and is skipped where there is no GPU.
#
# Environment: OUT, NAME (of the recording), DRIVER_ROOT, NVIDIA_CDI_HOOK. Needs Go, or bin/topodra-gpu built elsewhere:
#   go build -o bin/topodra-gpu ./test/gpu/cmd/topodra-gpu
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${OUT:-bin/gpu}
root=${DRIVER_ROOT:-/}
program=bin/topodra-gpu

if [[ ! -e $root/dev/nvidiactl && ! -e $root/proc/driver/nvidia/version ]]; then
	echo "skipped: this machine has no NVIDIA GPU, or its kernel driver is not loaded: neither /dev/nvidiactl nor /proc/driver/nvidia/version is below $root"
	exit 0
fi
mkdir -p "$out"
if [[ ! -x $program ]]; then
	if ! command -v go >/dev/null; then
		echo "neither $program nor Go is here; build it with: go build -o $program ./test/gpu/cmd/topodra-gpu" >&2
		exit 1
	fi
	timeout 120 go build -o "$program" ./test/gpu/cmd/topodra-gpu
fi
# The toolkit may be missing where only the driver is installed. Its hook is then named, but not looked for.
hook=${NVIDIA_CDI_HOOK:-/usr/bin/nvidia-cdi-hook}
if [[ ! -e $hook ]]; then
	echo "note: $hook is not installed; /bin/true stands for it"
	hook=/bin/true
fi
# What NVIDIA's own tool says, to compare with.
if command -v nvidia-smi >/dev/null; then
	timeout 60 nvidia-smi topo -m >"$out/nvidia-smi-topo.txt" || echo "note: nvidia-smi topo -m failed"
	timeout 60 nvidia-smi -q >"$out/nvidia-smi-q.txt" || echo "note: nvidia-smi -q failed"
fi
"$program" --driver-root "$root" --nvidia-cdi-hook "$hook" --out "$out" --name "${NAME:-recorded}" --timeout 2m
echo "results are in $out"
