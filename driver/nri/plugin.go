// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/internal/owners"
	"github.com/topodra/topodra/driver/prepare"
)

// Claims knows what has been prepared. prepare.Manager implements it.
type Claims interface {
	// Lookup returns the devices behind CDI names, or an error if the pod may
	// not have one of them.
	Lookup(ctx context.Context, pod prepare.Pod, names []string) ([]prepare.Held, error)

	// ContainerRegion is the host directory for the container's region.
	ContainerRegion(containerID string) string
}

// Events tells people about containers that were refused.
type Events interface {
	Pod(namespace, name string, uid types.UID, reason, message string)
}

// ReasonRefused is the reason of the event on a pod.
const ReasonRefused = "GPULimitsNotSet"

// Plugin answers the runtime.
type Plugin struct {
	claims   Claims
	enforcer enforce.Enforcer
	events   Events
	owners   *owners.Store
}

// requestTime bounds what the plugin does for one container. Runtimes give a
// plugin 2 s by default; an answer that says what was wrong is worth more than
// being cut off.
const requestTime = 1500 * time.Millisecond

// NewPlugin returns a plugin; enforcer is nil where nothing can be limited.
// containers remembers who has which GPUs.
func NewPlugin(claims Claims, enforcer enforce.Enforcer, events Events, containers *owners.Store) *Plugin {
	return &Plugin{claims: claims, enforcer: enforcer, events: events, owners: containers}
}

// CreateContainer adds the limits to a container that is about to be made.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	adjustment, err := p.create(ctx, pod, container)
	if err != nil {
		return nil, nil, p.refuse(ctx, pod, container, err)
	}
	return adjustment, nil, nil
}

// refuse tells everybody that a container does not start.
func (p *Plugin) refuse(ctx context.Context, pod *api.PodSandbox, container *api.Container, err error) error {
	err = fmt.Errorf("setting GPU limits of container %q of pod \"%s/%s\": %w", container.GetName(), pod.GetNamespace(), pod.GetName(), err)
	klog.FromContext(ctx).Error(err, "A container was refused", "pod", klog.KRef(pod.GetNamespace(), pod.GetName()), "container", container.GetName())
	p.events.Pod(pod.GetNamespace(), pod.GetName(), types.UID(pod.GetUid()), ReasonRefused, err.Error())
	return err
}

// create computes the adjustment; nil for containers without devices of ours.
func (p *Plugin) create(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	names := ownDevices(container)
	guards := guardsOf(container)
	if len(names) == 0 && len(guards) == 0 {
		return nil, nil
	}
	held, view, err := p.view(ctx, pod, container, names)
	if err != nil {
		return nil, err
	}
	if err := checkGuards(guards, held); err != nil {
		return nil, err
	}
	edits := enforce.Edits{}
	if view.Limited() {
		if edits, err = p.arm(ctx, view); err != nil {
			return nil, err
		}
	}
	owner := ownerOf(pod, container, held, view)
	for _, mount := range edits.Mounts {
		owner.Paths = append(owner.Paths, mount.HostPath)
	}
	if err := p.owners.Put(container.GetId(), owner); err != nil {
		return nil, err
	}
	return p.adjust(container, guards, edits), nil
}

// ownerOf describes the container for those who look from outside, with what it has
// mounted so far.
func ownerOf(pod *api.PodSandbox, container *api.Container, held []prepare.Held, view *enforce.Container) *owners.Owner {
	out := &owners.Owner{Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodUID: types.UID(pod.GetUid()), Container: container.GetName()}
	for _, gpu := range view.GPUs {
		entry := owners.GPU{UUID: gpu.UUID}
		if gpu.Limit != nil {
			entry.MemoryLimitMiB, entry.CoresLimitPercent = gpu.Limit.MemoryMiB, gpu.Limit.CoresPercent
		}
		for i := range held {
			if held[i].Device.UUID == gpu.UUID && !slices.Contains(entry.Claims, held[i].ClaimName) {
				entry.Claims = append(entry.Claims, held[i].ClaimName)
			}
		}
		slices.Sort(entry.Claims)
		out.GPUs = append(out.GPUs, entry)
	}
	for _, mount := range container.GetMounts() {
		if _, guard := cdi.IsGuard(mount.GetDestination()); !guard {
			out.Paths = append(out.Paths, mount.GetSource())
		}
	}
	return out
}

// view is what the container sees.
func (p *Plugin) view(ctx context.Context, pod *api.PodSandbox, container *api.Container, names []string) ([]prepare.Held, *enforce.Container, error) {
	if id := container.GetId(); !validID(id) {
		return nil, nil, fmt.Errorf("%q is no container ID", id)
	}
	held, err := p.claims.Lookup(ctx, prepare.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: types.UID(pod.GetUid())}, names)
	if err != nil {
		return nil, nil, err
	}
	devices := make([]checkpoint.Device, 0, len(held))
	for i := range held {
		devices = append(devices, held[i].Device)
	}
	view, err := enforce.NewContainer(devices, p.claims.ContainerRegion(container.GetId()))
	return held, view, err
}

// arm prepares the host and returns the edits.
func (p *Plugin) arm(ctx context.Context, view *enforce.Container) (enforce.Edits, error) {
	if p.enforcer == nil {
		return enforce.Edits{}, errors.New("this driver was started without anything to limit containers with")
	}
	if err := p.enforcer.Check(ctx); err != nil {
		return enforce.Edits{}, err
	}
	edits, err := p.enforcer.Edits(view)
	if err != nil {
		return enforce.Edits{}, err
	}
	return edits, p.enforcer.Provision(ctx, view)
}

// validID says whether the ID can be the name of a directory.
func validID(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.Contains(id, "/")
}

// ownDevices are the CDI names of ours, in order, each once.
func ownDevices(container *api.Container) []string {
	var out []string
	for _, device := range container.GetCDIDevices() {
		if _, ours := cdi.ClaimOf(device.GetName()); ours {
			out = append(out, device.GetName())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// guardsOf maps claims to the container paths of their guards.
func guardsOf(container *api.Container) map[types.UID]string {
	out := map[types.UID]string{}
	for _, mount := range container.GetMounts() {
		if claim, is := cdi.IsGuard(mount.GetDestination()); is {
			out[claim] = mount.GetDestination()
		}
	}
	return out
}

// checkGuards makes sure that no guard is taken away from a device that was not
// looked at.
func checkGuards(guards map[types.UID]string, held []prepare.Held) error {
	for _, claim := range slices.Sorted(maps.Keys(guards)) {
		if !slices.ContainsFunc(held, func(h prepare.Held) bool { return h.Claim == claim }) {
			return fmt.Errorf("the container has the guard of claim UID %q, but the runtime does not say that it has a device of it; "+
				"limits need a runtime that tells NRI plugins the CDI devices of containers", claim)
		}
	}
	return nil
}

// adjust turns edits into an adjustment. Everything is removed before it is
// added, which NRI takes for permission to change what another plugin, here that
// of another version of this driver, has set. NRI does not pass on the removal
// of a variable alone, so a variable of the pod's own that must not count is
// set to nothing.
func (p *Plugin) adjust(container *api.Container, guards map[types.UID]string, edits enforce.Edits) *api.ContainerAdjustment {
	out := &api.ContainerAdjustment{}
	for _, claim := range slices.Sorted(maps.Keys(guards)) {
		out.RemoveMount(guards[claim])
	}
	if len(edits.Env) == 0 && len(edits.Mounts) == 0 {
		return out
	}
	set := func(name, value string) {
		out.RemoveEnv(name)
		out.AddEnv(name, value)
	}
	for _, variable := range container.GetEnv() {
		name, value, _ := strings.Cut(variable, "=")
		isSet := slices.ContainsFunc(edits.Env, func(e enforce.EnvVar) bool { return e.Name == name })
		if !isSet && value != "" && p.enforcer.OwnsEnv(name) {
			set(name, "")
		}
	}
	for _, variable := range edits.Env {
		set(variable.Name, variable.Value)
	}
	for _, mount := range edits.Mounts {
		for _, other := range otherNames(container, mount.ContainerPath) {
			out.RemoveMount(other)
		}
		out.RemoveMount(mount.ContainerPath)
		out.AddMount(&api.Mount{Destination: mount.ContainerPath, Source: mount.HostPath, Type: "bind", Options: mount.Options()})
	}
	return out
}

// otherNames returns how the pod spells a path of ours in its own mounts, other than
// we do: with a slash at the end, say. Runtimes compare and sort mounts by their
// text, but mount what it means, so such a mount would come on top of ours.
func otherNames(container *api.Container, ours string) []string {
	var names []string
	for _, mount := range container.GetMounts() {
		if name := mount.GetDestination(); name != ours && path.Clean("/"+name) == ours {
			names = append(names, name)
		}
	}
	return names
}
