// SPDX-License-Identifier: Apache-2.0

package metrics

// States of a device's health.
const (
	StateHealthy   = "healthy"
	StateUnhealthy = "unhealthy"
	StateUnknown   = "unknown"
)

// Health of a published device.
type Health struct {
	UUID string

	// State is one of the above; anything else counts as StateUnknown.
	State string

	// Conditions counts what holds for the device now, by kind.
	Conditions map[string]int
}

// sendHealth tells about health.
func sendHealth(out sink, devices []Health) {
	for i := range devices {
		one := &devices[i]
		state := one.State
		if state != StateHealthy && state != StateUnhealthy {
			state = StateUnknown
		}
		for _, each := range []string{StateHealthy, StateUnhealthy, StateUnknown} {
			value := 0.0
			if each == state {
				value = 1
			}
			out.send(gpuHealth, value, one.UUID, each)
		}
		for kind, count := range one.Conditions {
			out.send(gpuConditions, float64(count), one.UUID, kind)
		}
	}
}
