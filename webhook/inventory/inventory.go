// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/convert"
)

const (
	// maxVerdicts bounds what is remembered about classes and selectors.
	maxVerdicts = 1024
	// maxExpressions bounds the compiled selectors.
	maxExpressions = 256
)

// Inventory is a view of the cluster.
type Inventory struct {
	classNames []string
	factories  []informers.SharedInformerFactory
	slices     resourcelisters.ResourceSliceLister
	classes    resourcelisters.DeviceClassLister
	synced     []cache.InformerSynced
	compiled   *cel.Cache

	mu       sync.Mutex
	changed  bool            // since devices were collected
	devices  []cel.Device    // ours
	gpus     []convert.GPU   // of these, the GPUs
	verdicts map[string]bool // by class version and selectors
}

// New makes an inventory. classNames are DeviceClasses that are ours whatever their selectors say. Start makes it work.
func New(client kubernetes.Interface, classNames ...string) (*Inventory, error) {
	ours := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DriverName).String()
	}))
	all := informers.NewSharedInformerFactory(client, 0)
	inventory := &Inventory{
		classNames: classNames,
		factories:  []informers.SharedInformerFactory{ours, all},
		slices:     ours.Resource().V1().ResourceSlices().Lister(),
		classes:    all.Resource().V1().DeviceClasses().Lister(),
		compiled:   cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true}),
		changed:    true,
	}
	for _, informer := range []cache.SharedIndexInformer{ours.Resource().V1().ResourceSlices().Informer(), all.Resource().V1().DeviceClasses().Informer()} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { inventory.forget() },
			UpdateFunc: func(any, any) { inventory.forget() },
			DeleteFunc: func(any) { inventory.forget() },
		})
		if err != nil {
			return nil, fmt.Errorf("watching devices and classes: %w", err)
		}
		inventory.synced = append(inventory.synced, registration.HasSynced)
	}
	return inventory, nil
}

// Start watches until ctx ends.
func (i *Inventory) Start(ctx context.Context) error {
	for _, factory := range i.factories {
		factory.StartWithContext(ctx)
	}
	<-ctx.Done()
	for _, factory := range i.factories {
		factory.Shutdown()
	}
	return nil
}

// NeedLeaderElection says that every replica does this.
func (i *Inventory) NeedLeaderElection() bool { return false }

// Ready returns an error until everything that existed at the start is known.
func (i *Inventory) Ready() error {
	for _, synced := range i.synced {
		if !synced() {
			return errors.New("the ResourceSlices and DeviceClasses are not known yet")
		}
	}
	return nil
}

// forget notes that something has changed.
func (i *Inventory) forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.changed = true
}

// refresh collects the devices if something has changed. mu is held.
func (i *Inventory) refresh() {
	if !i.changed {
		return
	}
	i.changed = false
	i.verdicts = map[string]bool{}
	i.devices, i.gpus = samples(), nil
	for _, slice := range newest(i.listSlices()) {
		for d := range slice.Spec.Devices {
			device := &slice.Spec.Devices[d]
			i.devices = append(i.devices, cel.Device{
				Driver: slice.Spec.Driver, AllowMultipleAllocations: device.AllowMultipleAllocations, Attributes: device.Attributes, Capacity: device.Capacity,
			})
			if text(device, api.AttrType) != api.DeviceTypeGPU {
				continue
			}
			memory := device.Capacity[api.CapacityMemory].Value
			i.gpus = append(i.gpus, convert.GPU{UUID: text(device, api.AttrUUID), ProductName: text(device, api.AttrProductName), MemoryBytes: memory.Value()})
		}
	}
}

// listSlices returns our driver's slices in a fixed order. The lister fails only for selectors, of which there are none.
func (i *Inventory) listSlices() []*resourceapi.ResourceSlice {
	list, err := i.slices.List(everything)
	if err != nil {
		return nil
	}
	slices.SortFunc(list, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// newest leaves out slices that a newer generation of their pool replaces.
func newest(list []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	generation := map[string]int64{}
	for _, slice := range list {
		pool := &slice.Spec.Pool
		generation[pool.Name] = max(generation[pool.Name], pool.Generation)
	}
	return slices.DeleteFunc(slices.Clone(list), func(slice *resourceapi.ResourceSlice) bool {
		return slice.Spec.Driver != api.DriverName || slice.Spec.Pool.Generation < generation[slice.Spec.Pool.Name]
	})
}

// text returns a text attribute, or nothing.
func text(device *resourceapi.Device, name resourceapi.QualifiedName) string {
	if value := device.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}

// GPUs returns the published GPUs. The caller does not change them.
func (i *Inventory) GPUs() []convert.GPU {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refresh()
	return i.gpus
}

// Ours says whether a request of the class with these selectors can be met by one of our devices.
func (i *Inventory) Ours(ctx context.Context, className string, selectors []resourceapi.DeviceSelector) bool {
	if slices.Contains(i.classNames, className) {
		return true
	}
	class, err := i.classes.Get(className)
	if err != nil {
		return false // a class that does not exist has no devices
	}
	all := append(expressions(class.Spec.Selectors), expressions(selectors)...)
	key := string(class.UID) + "/" + class.ResourceVersion + "\x00" + strings.Join(all, "\x00")

	i.mu.Lock()
	i.refresh()
	verdict, known := i.verdicts[key]
	devices, version := i.devices, i.verdicts
	i.mu.Unlock()
	if known {
		return verdict
	}
	verdict = slices.ContainsFunc(devices, func(device cel.Device) bool { return i.passes(ctx, all, device) })
	if ctx.Err() != nil {
		return verdict // perhaps not all devices were looked at
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(version) < maxVerdicts { // written to the map of the devices that were looked at, which may be forgotten by now
		version[key] = verdict
	}
	return verdict
}

// passes evaluates selectors. One that cannot be evaluated lets nothing through: so does the scheduler, which reports it.
func (i *Inventory) passes(ctx context.Context, selectors []string, device cel.Device) bool {
	for _, expression := range selectors {
		compiled := i.compiled.GetOrCompile(expression)
		if compiled.Error != nil {
			return false
		}
		if match, _, err := compiled.DeviceMatches(ctx, device); err != nil || !match {
			return false
		}
	}
	return true
}

// expressions returns the CEL text of selectors.
func expressions(selectors []resourceapi.DeviceSelector) []string {
	var list []string
	for _, selector := range selectors {
		if selector.CEL != nil {
			list = append(list, selector.CEL.Expression)
		}
	}
	return list
}

// OursByResource says whether an extended resource stands for a class of ours.
func (i *Inventory) OursByResource(ctx context.Context, resource string) bool {
	if className, found := strings.CutPrefix(resource, resourceapi.ResourceDeviceClassPrefix); found {
		return i.Ours(ctx, className, nil)
	}
	classes, err := i.classes.List(everything)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(classes, func(class *resourceapi.DeviceClass) bool {
		return class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == resource && i.Ours(ctx, class.Name, nil)
	})
}
