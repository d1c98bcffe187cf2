// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/e2e/vgpudouble"
)

// Paths in containers with limits.
const (
	preloadFile  = "/etc/ld.so.preload"
	libraryFile  = "/usr/local/vgpu/libvgpu.so"
	regionDir    = "/usr/local/vgpu/region"
	guardPrefix  = "/run/topodra/guard/"
	devicePrefix = "TOPODRA_DEVICE_"
)

// share is what a container should have of one GPU.
type share struct {
	UUID      string
	PCI       string
	MemoryMiB int64 // the limit, or all of the GPU if there is none
	Cores     int64 // the limit; 100 if there is none
	Limited   bool
}

// published is what the driver says about a device.
type published struct {
	uuid, pci string
	memory    int64 // bytes
}

// published waits for the driver's slices, which the kubelet removes when it starts, and returns the devices by name.
func (w *world) published(ctx context.Context) (map[string]published, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	slices, err := w.cluster.WaitForResourceSlices(ctx, nodeName, api.DriverName)
	if err != nil {
		return nil, err
	}
	devices := map[string]published{}
	for i := range slices {
		for _, device := range slices[i].Spec.Devices {
			uuid, pci, memory := device.Attributes[api.AttrUUID], device.Attributes[pciAttribute], device.Capacity[api.CapacityMemory]
			if uuid.StringValue == nil || pci.StringValue == nil {
				return nil, fmt.Errorf("device %q has no UUID or no PCI address", device.Name)
			}
			devices[device.Name] = published{uuid: *uuid.StringValue, pci: *pci.StringValue, memory: memory.Value.Value()}
		}
	}
	if len(devices) != gpuCount {
		return nil, fmt.Errorf("devices of the node: got %d, want %d", len(devices), gpuCount)
	}
	return devices, nil
}

// pciAttribute is the standard name.
const pciAttribute resourceapi.QualifiedName = "resource.kubernetes.io/pciBusID"

// expected computes from the API what a container should see, in the order of PCI addresses.
func (f *fixture) expected(pod *corev1.Pod, container string) []share {
	f.Helper()
	byUUID := map[string]share{}
	for _, reference := range claimsOf(f, pod, container) {
		claim := f.claimOf(pod, reference.Name)
		if claim.Status.Allocation == nil {
			f.Fatalf("claim %q has no allocation", claim.Name)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			base, _, _ := strings.Cut(result.Request, "/")
			if reference.Request != "" && reference.Request != result.Request && reference.Request != base {
				continue
			}
			device, ok := f.devices[result.Device]
			if !ok {
				f.Fatalf("claim %q has device %q, which is not published", claim.Name, result.Device)
			}
			byUUID[device.uuid] = add(byUUID, device, result)
		}
	}
	return slices.SortedFunc(maps.Values(byUUID), func(a, b share) int { return strings.Compare(a.PCI, b.PCI) })
}

// add adds one result of an allocation to what a container has of the same GPU.
func add(have map[string]share, device published, result resourceapi.DeviceRequestAllocationResult) share {
	s := share{UUID: device.uuid, PCI: device.pci, MemoryMiB: device.memory >> 20, Cores: 100}
	memory, shared := result.ConsumedCapacity[api.CapacityMemory]
	if s.Limited = shared && memory.Value() < device.memory; s.Limited {
		s.MemoryMiB = memory.Value() >> 20
		if cores, ok := result.ConsumedCapacity[api.CapacityCores]; ok && cores.Value() > 0 {
			s.Cores = cores.Value()
		}
	}
	other, ok := have[device.uuid]
	switch {
	case !ok:
		return s
	case !other.Limited:
		return other
	case !s.Limited:
		return s
	}
	s.MemoryMiB += other.MemoryMiB
	s.Cores = min(100, s.Cores+other.Cores)
	return s
}

// claimsOf returns the references of a container to claims.
func claimsOf(f *fixture, pod *corev1.Pod, container string) []corev1.ResourceClaim {
	f.Helper()
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		if c.Name == container {
			return c.Resources.Claims
		}
	}
	f.Fatalf("pod %q has no container %q", pod.Name, container)
	return nil
}

// claimOf returns the claim behind a name in a pod.
func (f *fixture) claimOf(pod *corev1.Pod, name string) *resourceapi.ResourceClaim {
	f.Helper()
	claimName := name
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.Name == name && status.ResourceClaimName != nil {
			claimName = *status.ResourceClaimName
		}
	}
	claim, err := f.client.ResourceV1().ResourceClaims(f.ns).Get(f.ctx, claimName, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return claim
}

// view is what a container sees.
type view struct {
	env    map[string]string
	mounts []string // targets
	// devices are the character devices below /dev.
	devices []string
	report  vgpudouble.Report
}

// look looks from inside a running container.
func (f *fixture) look(pod *corev1.Pod, container string) view {
	f.Helper()
	result, err := f.node.Exec(f.ctx, pod, container, viewCommand...)
	if err != nil {
		f.Fatal(err)
	}
	if result.ExitCode != 0 {
		f.Fatalf("looking from inside container %q of pod %q: exit code %d: %s", container, pod.Name, result.ExitCode, result.Stderr)
	}
	return f.parseView(pod, container, result.Stdout)
}

// viewCommand tells what is to be seen in a container, in parts that are marked. Containers that end by themselves have it as
// their command.
var viewCommand = []string{"/bin/sh", "-c", "env; echo ---; cat /proc/self/mountinfo; echo ---; find /dev -type c; echo ---; " + vgpudouble.Program}

// lookBack reads what a container with viewCommand has written.
func (f *fixture) lookBack(pod *corev1.Pod, container string) view {
	f.Helper()
	log, err := f.node.Logs(pod, container)
	if err != nil {
		f.Fatal(err)
	}
	return f.parseView(pod, container, log)
}

func (f *fixture) parseView(pod *corev1.Pod, container, said string) view {
	f.Helper()
	parts := strings.Split(said, "---\n")
	if len(parts) != 4 {
		f.Fatalf("view from inside container %q of pod %q: want four parts, got %q", container, pod.Name, said)
	}
	env, mountinfo, devices, report := parts[0], parts[1], parts[2], parts[3]
	v := view{env: map[string]string{}, devices: strings.Fields(devices)}
	for line := range strings.Lines(env) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		v.env[name] = value
	}
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 {
			v.mounts = append(v.mounts, fields[4])
		}
	}
	var err error
	if v.report, err = vgpudouble.ParseReport(report); err != nil {
		f.Fatal(err)
	}
	return v
}

// standardDevices are in every container.
var standardDevices = []string{"/dev/full", "/dev/null", "/dev/pts/ptmx", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"}

// checkView compares what a container sees with what the API promises it.
func (f *fixture) checkView(pod *corev1.Pod, container string, got view, want []share) {
	f.Helper()
	where := fmt.Sprintf("container %q of pod %q", container, pod.Name)
	var uuids, wantUUIDs []string
	for name, value := range got.env {
		if strings.HasPrefix(name, devicePrefix) {
			uuids = append(uuids, value)
		}
	}
	for _, s := range want {
		wantUUIDs = append(wantUUIDs, s.UUID)
	}
	slices.Sort(uuids)
	slices.Sort(wantUUIDs)
	if diff := cmp.Diff(wantUUIDs, uuids); diff != "" {
		f.Errorf("%s: GPUs (-want +got):\n%s", where, diff)
	}
	if i := slices.IndexFunc(got.mounts, func(target string) bool { return strings.HasPrefix(target, guardPrefix) }); i >= 0 {
		f.Errorf("%s: mount %q is there", where, got.mounts[i])
	}
	// GPUs of a recorded machine have no device files, and what guards the limits is one that all containers have.
	for _, device := range got.devices {
		if !slices.Contains(standardDevices, device) {
			f.Errorf("%s: device %q is there", where, device)
		}
	}
	if slices.ContainsFunc(want, func(s share) bool { return s.Limited }) {
		f.checkLimits(where, got, want)
	} else {
		f.checkNoLimits(where, got)
	}
}

// checkLimits checks a container of which at least one GPU is limited.
func (f *fixture) checkLimits(where string, got view, want []share) {
	f.Helper()
	var memory, cores []int64
	var numbers []string
	for i, s := range want {
		memory = append(memory, s.MemoryMiB)
		cores = append(cores, s.Cores)
		numbers = append(numbers, strconv.Itoa(i))
	}
	report := got.report
	if !report.Preloaded || !report.RegionWritable || report.RegionError != "" {
		f.Errorf("%s: got %+v, want the double preloaded and its region writable", where, report)
		return
	}
	gotMemory, memoryErr := report.MemoryMiB()
	gotCores, coresErr := report.CoresPercent()
	if memoryErr != nil || !slices.Equal(gotMemory, memory) {
		f.Errorf("%s: memory limits: got %v (%v), want %v MiB", where, gotMemory, memoryErr, memory)
	}
	if coresErr != nil || !slices.Equal(gotCores, cores) {
		f.Errorf("%s: limits of compute: got %v (%v), want %v percent", where, gotCores, coresErr, cores)
	}
	if report.Order != "PCI_BUS_ID" || report.Visible != strings.Join(numbers, ",") {
		f.Errorf("%s: got order %q of %q, want PCI_BUS_ID of %q", where, report.Order, report.Visible, numbers)
	}
	if filepath.Dir(report.Region) != regionDir {
		f.Errorf("%s: region: got %q, want it below %q", where, report.Region, regionDir)
	}
	for _, target := range []string{preloadFile, libraryFile, regionDir} {
		if !slices.Contains(got.mounts, target) {
			f.Errorf("%s: nothing is mounted at %q; mounts are %q", where, target, got.mounts)
		}
	}
}

// checkNoLimits checks a container that has its GPUs, if any, to itself.
func (f *fixture) checkNoLimits(where string, got view) {
	f.Helper()
	if got.report.Preloaded {
		f.Errorf("%s: got %+v, want nothing preloaded", where, got.report)
	}
	for name := range got.env {
		if strings.HasPrefix(name, "CUDA_DEVICE_MEMORY") || strings.HasPrefix(name, "CUDA_DEVICE_SM") {
			f.Errorf("%s: variable %q is set", where, name)
		}
	}
	for _, target := range got.mounts {
		if target == preloadFile || strings.HasPrefix(target, "/usr/local/vgpu") {
			f.Errorf("%s: something is mounted at %q", where, target)
		}
	}
}

// check looks into a running container and compares with the API. It returns what the container should have.
func (f *fixture) check(pod *corev1.Pod, container string) []share {
	f.Helper()
	want := f.expected(pod, container)
	f.checkView(pod, container, f.look(pod, container), want)
	return want
}

// regions returns, by container ID, the reports that processes of running containers with a limit have left on the host.
func (f *fixture) regions() map[string][]vgpudouble.Report {
	f.Helper()
	containers, err := f.node.Containers(f.ctx, "")
	if err != nil {
		f.Fatal(err)
	}
	found := map[string][]vgpudouble.Report{}
	for _, c := range containers {
		files, err := filepath.Glob(f.path("regions", "containers", c.ID, "*"+vgpudouble.ReportSuffix))
		if err != nil {
			f.Fatal(err)
		}
		if !c.Running {
			continue // the kubelet takes its time to remove it
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			for line := range strings.Lines(string(data)) {
				report, err := vgpudouble.ParseReport(line)
				if err != nil {
					f.Fatal(err)
				}
				found[c.ID] = append(found[c.ID], report)
			}
		}
	}
	return found
}

// uuidsOf returns the GPUs of shares.
func uuidsOf(shares []share) []string {
	var uuids []string
	for _, s := range shares {
		uuids = append(uuids, s.UUID)
	}
	return uuids
}
