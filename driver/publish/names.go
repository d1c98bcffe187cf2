// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/topodra/topodra/driver/device"
)

// Prefixes of device names.
const (
	gpuPrefix = "gpu-"
	migPrefix = "mig-"
)

// shortDigits is how many hexadecimal digits of a UUID a name has. 48 bits make
// a collision on one node practically a case for tests only.
const shortDigits = 12

// usualUUID is the form of today's UUIDs. Drivers before 470 name MIG devices
// after their parent instead, which is hashed.
var usualUUID = regexp.MustCompile(`(?i)^(?:GPU|MIG)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// digitsOf returns 32 hexadecimal digits for a UUID.
func digitsOf(uuid device.UUID) string {
	if match := usualUUID.FindStringSubmatch(string(uuid)); match != nil {
		return strings.ToLower(strings.ReplaceAll(match[1], "-", ""))
	}
	sum := sha256.Sum256([]byte(uuid))
	return hex.EncodeToString(sum[:16])
}

// Names tells under which name every device of the node is published: GPUs, and of
// those in MIG mode their MIG devices.
func Names(snapshot *device.Snapshot) map[device.UUID]string { return deviceNames(snapshot) }

// deviceNames names every GPU and MIG device of the node. Names that would be
// equal are made long, all of them, so that the result does not depend on order.
func deviceNames(snapshot *device.Snapshot) map[device.UUID]string {
	prefixes := map[device.UUID]string{}
	for i := range snapshot.GPUs {
		gpu := &snapshot.GPUs[i]
		if !gpu.MIGEnabled {
			prefixes[gpu.UUID] = gpuPrefix
			continue
		}
		for k := range gpu.MIGDevices {
			prefixes[gpu.MIGDevices[k].UUID] = migPrefix
		}
	}
	users := map[string]int{}
	for uuid, prefix := range prefixes {
		users[prefix+digitsOf(uuid)[:shortDigits]]++
	}
	names := make(map[device.UUID]string, len(prefixes))
	for uuid, prefix := range prefixes {
		digits := digitsOf(uuid)
		if users[prefix+digits[:shortDigits]] == 1 {
			digits = digits[:shortDigits]
		}
		names[uuid] = prefix + digits
	}
	return names
}
