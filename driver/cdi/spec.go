// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/enforce"
)

// Vendor and Class are the kind of all our specs.
const (
	Vendor = "k8s." + api.DriverName
	Class  = "claim"
)

// separator joins the parts of a name. It occurs in none of them: UIDs, request,
// device and share names have letters, digits, dashes and dots only.
const separator = "_"

// Name is the qualified CDI name of one result of a claim's allocation. request
// may be "main" or "main/sub"; shareID may be empty.
func Name(claim types.UID, request, device, shareID string) string {
	parts := []string{string(claim), strings.ReplaceAll(request, "/", "."), device}
	if shareID != "" {
		parts = append(parts, shareID)
	}
	return parser.QualifiedName(Vendor, Class, strings.Join(parts, separator))
}

// ClaimOf returns the UID of the claim that a qualified name belongs to. It is
// false for names that are not ours.
func ClaimOf(qualified string) (types.UID, bool) {
	vendor, class, name := parser.ParseDevice(qualified)
	if vendor != Vendor || class != Class {
		return "", false
	}
	uid, _, found := strings.Cut(name, separator)
	return types.UID(uid), found && uid != ""
}

// Base knows what a container needs in order to use devices at all.
type Base interface {
	// Edits returns what every container needs and what each device, by UUID,
	// adds. Every UUID asked for is in the result. The caller may change it.
	Edits(ctx context.Context, uuids []string) (*BaseEdits, error)
}

// BaseEdits is the answer of a Base.
type BaseEdits struct {
	Common  specs.ContainerEdits
	Devices map[string]specs.ContainerEdits
}

// Simulated is the Base of recorded machines: there is nothing to give.
type Simulated struct{}

// Edits implements Base.
func (Simulated) Edits(_ context.Context, uuids []string) (*BaseEdits, error) {
	out := &BaseEdits{Devices: map[string]specs.ContainerEdits{}}
	for _, uuid := range uuids {
		out.Devices[uuid] = specs.ContainerEdits{}
	}
	return out, nil
}

// Device is one device of a claim's spec.
type Device struct {
	// Name is qualified, see Name.
	Name string

	// UUID and DeviceName of the GPU or MIG device.
	UUID, DeviceName string

	// Extra are limits.
	Extra enforce.Edits

	// Guard is nil for devices that need none.
	Guard *Guard
}

// Guard makes a spec useless to containers that our NRI plugin does not see. It
// is a bind mount whose source never exists, so that the runtime fails to start
// the container; the plugin takes the mount away when it has set the limits. The
// source's name tells an administrator what has happened, since the runtime
// quotes it.
//
// A start that fails is final for a pod that must not be restarted. So, where
// Device is set, there is a device besides, which the host has only while the
// plugin is connected. The runtime looks for it earlier, when it creates the
// container, and the kubelet tries that again.
type Guard struct {
	// Claim that the guard is for; part of the path inside the container.
	Claim types.UID

	// Dir is a directory of ours in which Missing is never created.
	Dir string

	// Device is the host path of the device, as GuardDevice makes it, or "".
	Device string
}

// Missing is the last part of a guard's source.
const Missing = "limits-were-not-set-because-the-topodra-nri-plugin-did-not-see-this-container"

// guardPrefix is where guards would be mounted in a container.
const guardPrefix = "/run/topodra/guard/"

// GuardPath is the container path of the claim's guard.
func GuardPath(claim types.UID) string { return guardPrefix + string(claim) }

// IsGuard says which claim a container path guards.
func IsGuard(containerPath string) (types.UID, bool) {
	uid, found := strings.CutPrefix(containerPath, guardPrefix)
	return types.UID(uid), found && uid != ""
}

// GuardDeviceDir is the name of what leads to the device of guards. It is part of
// the runtime's message about a container that is refused for want of the device.
const GuardDeviceDir = "the-topodra-nri-plugin-is-connected"

// nullDevice is what the device of a guard is, on the host and in the container.
// NRI cannot take a device away again, so it is one that all containers have.
const nullDevice = "/dev/null"

// GuardDevice is the host path of the device of guards below a directory.
func GuardDevice(dir string) string { return path.Join(dir, GuardDeviceDir, path.Base(nullDevice)) }

// isGuardDevice says whether a device is that of a guard.
func isGuardDevice(node *specs.DeviceNode) bool {
	return node.Path == nullDevice && node.HostPath == GuardDevice(path.Dir(path.Dir(node.HostPath)))
}

// guardDevice has no type and no number, so that the runtime has to look for it on
// the host; the rest is as in every container.
func guardDevice(hostPath string) *specs.DeviceNode {
	return &specs.DeviceNode{HostPath: hostPath, Path: nullDevice, FileMode: new(os.FileMode(0o666)), UID: new(uint32), GID: new(uint32)}
}

// Build makes the spec of a claim.
func Build(base *BaseEdits, devices []Device) (*specs.Spec, error) {
	spec := &specs.Spec{Kind: Vendor + "/" + Class, ContainerEdits: base.Common}
	spec.ContainerEdits.Env = appendMissing(spec.ContainerEdits.Env, noOtherDevices)
	for _, device := range devices {
		edits, ok := base.Devices[device.UUID]
		if !ok {
			return nil, fmt.Errorf("building CDI spec: nothing is known about device %q (%s)", device.UUID, device.DeviceName)
		}
		vendor, class, name := parser.ParseDevice(device.Name)
		if vendor != Vendor || class != Class {
			return nil, fmt.Errorf("building CDI spec: %q is no qualified device name of ours", device.Name)
		}
		edits = extend(edits, device)
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("building CDI spec: finding its version: %w", err)
	}
	spec.Version = version
	return spec, nil
}

// noOtherDevices keeps a container runtime of NVIDIA, where that is the default,
// from adding all GPUs of the node on its own.
const noOtherDevices = "NVIDIA_VISIBLE_DEVICES=void"

// extend adds limits, guard and the device's identity.
func extend(edits specs.ContainerEdits, device Device) specs.ContainerEdits {
	edits.Env = append(slices.Clone(edits.Env), identity(device))
	edits.Mounts = slices.Clone(edits.Mounts)
	for _, variable := range device.Extra.Env {
		edits.Env = append(edits.Env, variable.Name+"="+variable.Value)
	}
	for _, mount := range device.Extra.Mounts {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath, Options: mount.Options(), Type: "bind"})
	}
	if guard := device.Guard; guard != nil {
		mount := enforce.Mount{HostPath: guard.Dir + "/" + Missing, ContainerPath: GuardPath(guard.Claim), ReadOnly: true}
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath, Options: mount.Options(), Type: "bind"})
		if guard.Device != "" {
			edits.DeviceNodes = append(slices.Clone(edits.DeviceNodes), guardDevice(guard.Device))
		}
	}
	return edits
}

// identity tells programs in the container which device they have. It also
// keeps a simulated device from having no edits, which CDI forbids.
func identity(device Device) string {
	name := strings.ToUpper(strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '_'
	}, strings.ToLower(device.DeviceName)))
	return "TOPODRA_DEVICE_" + name + "=" + device.UUID
}

// appendMissing adds the variable unless one of that name is there.
func appendMissing(env []string, variable string) []string {
	name, _, _ := strings.Cut(variable, "=")
	if slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
		return env
	}
	return append(slices.Clone(env), variable)
}

// HostPaths lists the paths on the host that the spec refers to and that must
// exist, in order, each once.
func HostPaths(spec *specs.Spec) []string {
	seen := map[string]bool{}
	all := []specs.ContainerEdits{spec.ContainerEdits}
	for _, device := range spec.Devices {
		all = append(all, device.ContainerEdits)
	}
	for _, edits := range all {
		for _, mount := range edits.Mounts {
			if _, guard := IsGuard(mount.ContainerPath); !guard && isBind(mount) {
				seen[mount.HostPath] = true
			}
		}
		for _, node := range edits.DeviceNodes {
			if isGuardDevice(node) {
				continue // it comes and goes with the plugin
			}
			seen[cmp.Or(node.HostPath, node.Path)] = true
		}
		for _, hook := range edits.Hooks {
			seen[hook.Path] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// guardSources lists the host paths of guards, which must not exist.
func guardSources(spec *specs.Spec) []string {
	var out []string
	for _, device := range spec.Devices {
		for _, mount := range device.ContainerEdits.Mounts {
			if _, guard := IsGuard(mount.ContainerPath); guard {
				out = append(out, mount.HostPath)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isBind says whether a mount's source is a path of the host; a tmpfs has none.
func isBind(mount *specs.Mount) bool {
	return mount.Type == "bind" || mount.Type == "" || slices.Contains(mount.Options, "bind") || slices.Contains(mount.Options, "rbind")
}
