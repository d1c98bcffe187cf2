// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TopologyDynamicResourcesArgs configures the scheduler plugins
// TopologyDynamicResources and TopologyScore. It is the args of
// TopologyDynamicResources; TopologyScore follows it.
type TopologyDynamicResourcesArgs struct {
	metav1.TypeMeta `json:",inline"`

	// FilterTimeout limits the in-tree allocator's time per node. It is passed
	// on to the in-tree plugin; nil leaves that plugin's default (10 s), 0
	// means no limit.
	FilterTimeout *metav1.Duration `json:"filterTimeout,omitempty"`

	// BindingTimeout limits the wait for device binding conditions. It is
	// passed on to the in-tree plugin; nil leaves that plugin's default
	// (600 s).
	BindingTimeout *metav1.Duration `json:"bindingTimeout,omitempty"`

	// DefaultPolicy holds for claims that name no policy: Preferred (the
	// default) or None. A guarantee has to be asked for by the claim.
	DefaultPolicy Policy `json:"defaultPolicy,omitempty"`

	// TierPercent is by how many percent two sets may differ in bandwidth and
	// still count as equally good. 0 to 50, default 10.
	TierPercent *int32 `json:"tierPercent,omitempty"`

	// ScoreWeights says what counts when nodes are ranked.
	ScoreWeights *ScoreWeights `json:"scoreWeights,omitempty"`

	// Mix is the typical claims to come, for which the rest of a node should
	// stay useful. At most 16.
	Mix []TypicalClaim `json:"mix,omitempty"`

	// Drivers says where to read the topology of other drivers' devices. A
	// driver that is not listed is read by the standard attributes alone.
	Drivers []DriverMapping `json:"drivers,omitempty"`

	// MaxCandidates is how many sets per node are tried, best first, before
	// the node counts as having none. 1 to 1024, default 16.
	MaxCandidates *int32 `json:"maxCandidates,omitempty"`

	// PlanBudget limits the time that planning one node may add to Filter.
	// When it is used up, preferences are dropped for that node; guarantees
	// are not. 1 ms to 10 s, default 1 s: it is time on the
	// clock, of which a busy machine gives little to anybody.
	PlanBudget *metav1.Duration `json:"planBudget,omitempty"`
}

// ScoreWeights are relative: only their ratios matter. Each is 0 to 1000 and
// at least one is above 0.
type ScoreWeights struct {
	// Quality weighs the bandwidth tier of the set that the node offers.
	Quality int32 `json:"quality"`

	// Allocated weighs how full the node is, so that empty ones stay whole.
	Allocated int32 `json:"allocated"`

	// Remaining weighs how little the set takes away from claims to come.
	Remaining int32 `json:"remaining"`
}

// TypicalClaim is one entry of the mix.
type TypicalClaim struct {
	// GPUs of the claim, 1 to 64.
	GPUs int32 `json:"gpus"`

	// Memory that the claim takes of each GPU; nil is all of it, a whole GPU.
	Memory *resource.Quantity `json:"memory,omitempty"`

	// Cores that the claim takes of each GPU, in percent, 0 to 100. Only with
	// Memory; a whole GPU takes all.
	Cores int32 `json:"cores,omitempty"`

	// Weight is how common the claim is among the others, 1 to 10000.
	Weight int32 `json:"weight"`
}

// DriverMapping names the attributes and capacities of one driver's devices.
type DriverMapping struct {
	// Driver is the name of a DRA driver.
	Driver string `json:"driver"`

	// Attributes of its devices.
	Attributes AttributeMapping `json:"attributes,omitzero"`

	// Capacities of its devices.
	Capacities CapacityMapping `json:"capacities,omitzero"`
}

// AttributeMapping names the attributes to read. A name without a domain means
// the driver's own domain. An empty name means that there is no such
// attribute, but for PCIeRoot, NUMANode and PCIBusID, where it stands for the
// standard attribute.
type AttributeMapping struct {
	// Index, NVLinks, PCIe, NVLinkMBps, NVLinkSwitched, PCIeGen and NearestNIC
	// have the format of our own attributes of that name.
	Index          string `json:"index,omitempty"`
	NVLinks        string `json:"nvlinks,omitempty"`
	PCIe           string `json:"pcie,omitempty"`
	NVLinkMBps     string `json:"nvlinkMBps,omitempty"`
	NVLinkSwitched string `json:"nvlinkSwitched,omitempty"`
	PCIeGen        string `json:"pcieGen,omitempty"`
	NearestNIC     string `json:"nearestNIC,omitempty"`

	// NVLinkDomain is a string or int that is equal on GPUs of one node which
	// all have NVLink to each other. It is used where NVLinks is missing.
	NVLinkDomain string `json:"nvlinkDomain,omitempty"`

	// PCIeRoot is a string, NUMANode an int, PCIBusID a string.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	NUMANode string `json:"numaNode,omitempty"`
	PCIBusID string `json:"pciBusID,omitempty"`
}

// CapacityMapping names the capacities to read. An empty name means that there
// is no such capacity, but for Memory, where it stands for "memory".
type CapacityMapping struct {
	// Memory is in bytes.
	Memory string `json:"memory,omitempty"`

	// Cores is in percent of a GPU.
	Cores string `json:"cores,omitempty"`

	// Slots is a number of claims.
	Slots string `json:"slots,omitempty"`
}

// Defaults of TopologyDynamicResourcesArgs.
const (
	DefaultTierPercent   = 10
	DefaultMaxCandidates = 16
	DefaultPlanBudget    = time.Second
)

// DefaultScoreWeights ranks nodes by tier first, then by how full they are,
// then by what is left for others.
func DefaultScoreWeights() ScoreWeights {
	return ScoreWeights{Quality: 60, Allocated: 30, Remaining: 10}
}

// DefaultMix is half single GPUs and the rest pairs, quads and whole machines
// of eight.
func DefaultMix() []TypicalClaim {
	return []TypicalClaim{{GPUs: 1, Weight: 50}, {GPUs: 2, Weight: 22}, {GPUs: 4, Weight: 20}, {GPUs: 8, Weight: 8}}
}

// DecodeTopologyDynamicResourcesArgs accepts what the scheduler framework hands
// to a plugin factory: nil, raw JSON in a runtime.Unknown, or our own type. It
// returns a new value with all defaults that validates. In raw JSON, apiVersion
// and kind may be left out together.
func DecodeTopologyDynamicResourcesArgs(obj runtime.Object) (*TopologyDynamicResourcesArgs, error) {
	args := &TopologyDynamicResourcesArgs{}
	switch given := obj.(type) {
	case nil:
	case *TopologyDynamicResourcesArgs:
		if given != nil {
			args = given.DeepCopy()
		}
	case *runtime.Unknown:
		if given == nil || len(given.Raw) == 0 {
			break
		}
		decoded, err := decodeArgs(given.Raw)
		if err != nil {
			return nil, err
		}
		args = decoded
	default:
		return nil, fmt.Errorf("decoding arguments of plugin %q: got a %T, want JSON of kind %q in apiVersion %q",
			PluginTopologyDynamicResources, obj, KindTopologyDynamicResourcesArgs, GroupVersion())
	}
	args.Default()
	if err := args.Validate().ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating arguments of plugin %q: %w", PluginTopologyDynamicResources, err)
	}
	return args, nil
}

// decodeArgs decodes raw JSON without defaulting.
func decodeArgs(raw []byte) (*TopologyDynamicResourcesArgs, error) {
	gvk := GroupVersion().WithKind(KindTopologyDynamicResourcesArgs)
	obj, err := decodeStrict(raw, &gvk)
	if err != nil {
		return nil, fmt.Errorf("decoding arguments of plugin %q: %w", PluginTopologyDynamicResources, err)
	}
	args, ok := obj.(*TopologyDynamicResourcesArgs)
	if !ok {
		return nil, fmt.Errorf("decoding arguments of plugin %q: kind is %q, want %q", PluginTopologyDynamicResources,
			obj.GetObjectKind().GroupVersionKind().Kind, KindTopologyDynamicResourcesArgs)
	}
	return args, nil
}

// Default fills in what the user left out.
func (a *TopologyDynamicResourcesArgs) Default() {
	a.APIVersion, a.Kind = GroupVersion().String(), KindTopologyDynamicResourcesArgs
	if a.DefaultPolicy == "" {
		a.DefaultPolicy = PolicyPreferred
	}
	if a.TierPercent == nil {
		a.TierPercent = new(int32(DefaultTierPercent))
	}
	if a.ScoreWeights == nil {
		a.ScoreWeights = new(DefaultScoreWeights())
	}
	if len(a.Mix) == 0 {
		a.Mix = DefaultMix()
	}
	if a.MaxCandidates == nil {
		a.MaxCandidates = new(int32(DefaultMaxCandidates))
	}
	if a.PlanBudget == nil {
		a.PlanBudget = &metav1.Duration{Duration: DefaultPlanBudget}
	}
	for i := range a.Drivers {
		a.Drivers[i].Default()
	}
}

// Default fills in the standard names.
func (m *DriverMapping) Default() {
	setDefault(&m.Attributes.PCIeRoot, string(AttrPCIeRoot))
	setDefault(&m.Attributes.NUMANode, string(AttrNUMANode))
	setDefault(&m.Attributes.PCIBusID, string(AttrPCIBusID))
	setDefault(&m.Capacities.Memory, string(CapacityMemory))
}

// setDefault sets an empty name.
func setDefault(name *string, value string) {
	if *name == "" {
		*name = value
	}
}

// MappingFor returns the mapping of the driver: our own, a configured one, or
// the standard names alone.
func (a *TopologyDynamicResourcesArgs) MappingFor(driver string) DriverMapping {
	if driver == DriverName {
		return OwnMapping()
	}
	for _, mapping := range a.Drivers {
		if mapping.Driver == driver {
			return mapping
		}
	}
	mapping := DriverMapping{Driver: driver}
	mapping.Default()
	return mapping
}

// OwnMapping names the attributes and capacities of gpu.topodra.dev.
func OwnMapping() DriverMapping {
	return DriverMapping{
		Driver: DriverName,
		Attributes: AttributeMapping{
			Index: string(AttrIndex), NVLinks: string(AttrNVLinks), PCIe: string(AttrPCIe),
			NVLinkMBps: string(AttrNVLinkMBps), NVLinkSwitched: string(AttrNVLinkSwitched),
			PCIeGen: string(AttrPCIeGen), NearestNIC: string(AttrNearestNIC),
			PCIeRoot: string(AttrPCIeRoot), NUMANode: string(AttrNUMANode), PCIBusID: string(AttrPCIBusID),
		},
		Capacities: CapacityMapping{
			Memory: string(CapacityMemory), Cores: string(CapacityCores), Slots: string(CapacitySlots),
		},
	}
}
