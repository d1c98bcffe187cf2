// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Synchronize hears which containers there are, at each connection; the runtime
// makes none meanwhile. It removes the regions of those that are gone, and tells people about running containers
// that have devices which they should not have; stopping those is not the
// runtime's business.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	byID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	known := map[string]bool{}
	for _, container := range containers {
		known[container.GetId()] = true
		names, pod := ownDevices(container), byID[container.GetPodSandboxId()]
		if len(names) == 0 || pod == nil || container.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		held, view, err := p.view(ctx, pod, container, names)
		if err == nil {
			err = p.owners.Put(container.GetId(), ownerOf(pod, container, held, view))
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "A running container has devices that it should not have",
				"pod", klog.KRef(pod.GetNamespace(), pod.GetName()), "container", container.GetName())
			p.events.Pod(pod.GetNamespace(), pod.GetName(), types.UID(pod.GetUid()), ReasonRefused,
				fmt.Sprintf("container %q is running with devices that it should not have: %v", container.GetName(), err))
		}
	}
	err := errors.Join(p.removeStrayRegions(known), p.owners.Retain(func(id string) bool { return known[id] }))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Removing what was left of containers that are gone failed")
	}
	return nil, nil
}

// removeStrayRegions removes the regions of containers that are not known.
func (p *Plugin) removeStrayRegions(known map[string]bool) error {
	parent := filepath.Dir(p.claims.ContainerRegion("x"))
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if !known[entry.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(parent, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// StartContainer lets the enforcer act on the container's cgroup before its
// first process runs.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	names := ownDevices(container)
	if len(names) == 0 || p.enforcer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, view, err := p.view(ctx, pod, container, names)
	if err == nil && view.Limited() {
		err = p.enforcer.Start(ctx, view, cgroupPath(container.GetLinux().GetCgroupsPath()))
	}
	if err != nil {
		return p.refuse(ctx, pod, container, err)
	}
	return nil
}

// RemoveContainer removes the container's region.
func (p *Plugin) RemoveContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) error {
	if len(ownDevices(container)) == 0 || !validID(container.GetId()) {
		return nil
	}
	err := errors.Join(os.RemoveAll(p.claims.ContainerRegion(container.GetId())), p.owners.Remove(container.GetId()))
	if err != nil {
		// The next Synchronize tries again; the container is gone in any case.
		klog.FromContext(ctx).Error(err, "Removing what was left of a container failed", "container", container.GetName())
	}
	return nil
}

// cgroupPath turns what the OCI spec calls the cgroup's path into one below the
// root of the cgroup file system. With systemd it is "slice:prefix:name", where
// a slice "a-b.slice" lies in "a.slice".
func cgroupPath(ociPath string) string {
	parts := strings.Split(ociPath, ":")
	if len(parts) != 3 {
		return ociPath
	}
	slice, prefix, name := parts[0], parts[1], parts[2]
	out := "/"
	if base, ok := strings.CutSuffix(slice, ".slice"); ok && base != "-" {
		parts := strings.Split(base, "-")
		for i := range parts {
			out = path.Join(out, strings.Join(parts[:i+1], "-")+".slice")
		}
	}
	if strings.HasSuffix(name, ".slice") {
		return path.Join(out, name)
	}
	return path.Join(out, prefix+"-"+name+".scope")
}
