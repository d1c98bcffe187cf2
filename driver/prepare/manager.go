// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/internal/owners"
)

// Options of a Manager. All are needed but where it says otherwise.
type Options struct {
	// NodeName is the name of the node and of the driver's pool.
	NodeName string

	// StateDir is the driver's own directory on the host. It must exist and be
	// visible under the same path to the container runtime.
	StateDir string

	// CDIDir is where the container runtime reads CDI specs.
	CDIDir string

	// Paths maps paths of the host into the driver's file system. May be empty.
	Paths cdi.PathMap

	// BootIDPath; "" is checkpoint.BootIDPath.
	BootIDPath string

	// Inventory knows the node's devices.
	Inventory Inventory

	// Base knows what a container needs in order to use them.
	Base cdi.Base

	// Enforcer keeps limits. Nil refuses claims that have limits.
	Enforcer enforce.Enforcer

	// NRIOffered says whether limits are to be delivered by the driver's NRI
	// plugin: the runtime has NRI and the administrator has not turned it off.
	// Nil is never.
	NRIOffered func() bool

	// GuardDevice is a device on the host that is there only while the NRI plugin
	// is connected, see cdi.Guard; "" does without. Nil is always "".
	GuardDevice func() string

	// Containers lists the containers on the node that have devices, by the
	// runtime's ID; see package owners. Nil is where nobody tells which there
	// are, as without NRI.
	Containers func() (map[string]*owners.Owner, error)

	// Cluster, Events and Status talk to the API server.
	Cluster Cluster
	Events  Events
	Status  StatusSink

	// LockTimeout bounds the wait for other calls and processes. 0 is
	// DefaultLockTimeout.
	LockTimeout time.Duration

	// Now is the clock; nil is time.Now.
	Now func() time.Time

	// wrapHost lets tests come between the manager and the node.
	wrapHost func(Host) Host
}

// DefaultLockTimeout is well below the kubelet's own limit of 45 s per call, so
// that the kubelet gets to see what was in the way.
const DefaultLockTimeout = 20 * time.Second

// Directories in Options.StateDir.
const (
	regionsDir = "regions"
	guardsDir  = "guards"
)

// Manager prepares and unprepares claims.
type Manager struct {
	options Options
	host    Host
	where   layout

	// turn holds a token while a call is under way. It is taken before the lock
	// between processes, so that calls of this process do not poll against each
	// other.
	turn chan struct{}
}

// NewManager checks the options. It touches nothing on the node.
func NewManager(options Options) (*Manager, error) {
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("configuring the preparation of claims: %w", err)
	}
	if options.BootIDPath == "" {
		options.BootIDPath = checkpoint.BootIDPath
	}
	if options.LockTimeout == 0 {
		options.LockTimeout = DefaultLockTimeout
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.NRIOffered == nil {
		options.NRIOffered = func() bool { return false }
	}
	if options.Containers == nil {
		options.Containers = func() (map[string]*owners.Owner, error) { return nil, nil }
	}
	if options.GuardDevice == nil {
		options.GuardDevice = func() string { return "" }
	}
	dir, err := cdi.NewDir(options.CDIDir)
	if err != nil {
		return nil, err
	}
	where := layout{regions: filepath.Join(options.StateDir, regionsDir), guards: filepath.Join(options.StateDir, guardsDir)}
	var host Host = &node{Store: checkpoint.NewStore(options.StateDir, options.NodeName), dir: dir, paths: options.Paths,
		enforcer: options.Enforcer, where: where, stateDir: options.StateDir, bootIDPath: options.BootIDPath}
	if options.wrapHost != nil {
		host = options.wrapHost(host)
	}
	return &Manager{options: options, host: host, where: where, turn: make(chan struct{}, 1)}, nil
}

// validate reports the first thing that is missing.
func (o *Options) validate() error {
	switch {
	case o.NodeName == "":
		return errors.New("the node's name is missing")
	case !filepath.IsAbs(o.StateDir) || filepath.Clean(o.StateDir) == "/":
		return fmt.Errorf("state directory %q is not an absolute path below /", o.StateDir)
	case o.Inventory == nil, o.Base == nil, o.Cluster == nil, o.Events == nil, o.Status == nil:
		return errors.New("inventory, base, cluster, events or status is missing")
	case o.LockTimeout < 0:
		return fmt.Errorf("lock timeout %s is negative", o.LockTimeout)
	}
	return o.Paths.Validate()
}

// PrepareResourceClaims has the form that kubeletplugin.DRAPlugin asks for. Every
// claim has an entry in the result.
func (m *Manager) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		devices, err := m.Prepare(ctx, claim)
		if err != nil {
			m.report(ctx, claim, err)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

// UnprepareResourceClaims has the form that kubeletplugin.DRAPlugin asks for.
func (m *Manager) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		err := m.Unprepare(ctx, claim.UID)
		if err != nil {
			err = fmt.Errorf("unpreparing claim %q: %w", claim.NamespacedName, err)
			klog.FromContext(ctx).Error(err, "Unpreparing a claim failed", "claim", claim)
		}
		results[claim.UID] = err
	}
	return results, nil
}

// report makes a failure visible where people look for it.
func (m *Manager) report(ctx context.Context, claim *resourceapi.ResourceClaim, err error) {
	reason := EventPrepareFailed
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		reason = string(refusal.Reason)
	}
	klog.FromContext(ctx).Error(err, "Preparing a claim failed", "claim", klog.KObj(claim), "reason", reason)
	m.options.Events.Claim(claim.Namespace, claim.Name, claim.UID, reason, err.Error())
}

// Prepare makes the claim usable and returns its devices, one for each result
// of this driver in the allocation, in that order.
func (m *Manager) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (_ []kubeletplugin.Device, finalErr error) {
	defer func() {
		if finalErr != nil {
			finalErr = fmt.Errorf("preparing claim \"%s/%s\": %w", claim.Namespace, claim.Name, finalErr)
		}
	}()
	known, err := m.devices(ctx)
	if err != nil {
		return nil, err
	}
	record, err := computeRecord(claim, m.options.NodeName, known)
	if err != nil {
		return nil, err
	}
	if err := m.deliver(ctx, record); err != nil {
		return nil, err
	}
	planned, err := m.plan(ctx, claim.UID, record)
	if err != nil {
		return nil, err
	}
	for {
		// Nothing has happened so far. From here on, nobody else acts.
		err := m.locked(ctx, func(document *checkpoint.Document) error {
			return m.prepareLocked(ctx, document, claim.UID, record, planned, known)
		})
		overbooked, ok := errors.AsType[*overbookedError](err)
		if ok {
			err = m.makeRoom(ctx, overbooked)
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
	}
	m.options.Status.Prepared(claim.UID, record)
	return results(record), nil
}

// devices asks the inventory.
func (m *Manager) devices(ctx context.Context) (devices, error) {
	present, err := m.options.Inventory.Present(ctx)
	if err != nil {
		return devices{}, fmt.Errorf("looking for the node's GPUs: %w", err)
	}
	return newDevices(present, m.options.Inventory.Published), nil
}

// plan asks what containers need and computes the spec.
func (m *Manager) plan(ctx context.Context, uid types.UID, record *checkpoint.Claim) (*plan, error) {
	base, err := m.options.Base.Edits(ctx, uuids(record))
	if err != nil {
		return nil, fmt.Errorf("finding out what containers need for the claim's GPUs: %w", err)
	}
	where := m.where
	if record.Delivery == checkpoint.DeliveryNRI {
		where.guardDevice = m.options.GuardDevice()
	}
	return makePlan(uid, record, base, m.options.Enforcer, where)
}

// locked runs act under both locks with the present checkpoint. A checkpoint
// that is corrupt is set aside first, and the empty one that act then gets is
// completed by the next Reconcile. A new boot is noticed before act.
func (m *Manager) locked(ctx context.Context, act func(document *checkpoint.Document) error) (finalErr error) {
	ctx, cancel := context.WithTimeout(ctx, m.options.LockTimeout)
	defer cancel()
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for another call of this driver to end: %w", ctx.Err())
	}
	unlock, err := m.host.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, unlock()) }()
	document, err := m.load(ctx)
	if err != nil {
		return err
	}
	if err := m.noticeBoot(ctx, document); err != nil {
		return err
	}
	return act(document)
}

// load reads the checkpoint and gets a corrupt one out of the way.
func (m *Manager) load(ctx context.Context) (*checkpoint.Document, error) {
	document, err := m.host.Load()
	corrupt, ok := errors.AsType[*checkpoint.CorruptError](err)
	if !ok {
		return document, err
	}
	aside, err := m.host.SetAside(m.options.Now())
	if err != nil {
		return nil, errors.Join(corrupt, err)
	}
	klog.FromContext(ctx).Error(corrupt, "The checkpoint is corrupt; rebuilding it from the API server and the CDI directory", "setAside", aside)
	m.options.Events.Node(EventCheckpointCorrupt, fmt.Sprintf("%v; it was kept as %q and is being rebuilt from the node's claims and CDI specs", corrupt, aside))
	return checkpoint.New(m.options.NodeName, ""), nil
}

// prepareLocked records and applies.
func (m *Manager) prepareLocked(ctx context.Context, document *checkpoint.Document, uid types.UID, record *checkpoint.Claim, planned *plan, known devices) error {
	before := document.Claims[uid]
	repeated := before != nil && before.State == checkpoint.StateCompleted && sameAllocation(before, record)
	record.PreparedAt = m.options.Now().UTC()
	if repeated {
		// It may be in use. What is there stays there, whatever fails below.
		record.PreparedAt = before.PreparedAt
		if err := m.apply(ctx, uid, planned); err != nil {
			return err
		}
		return m.complete(document, uid, record)
	}
	if err := checkRoom(document, uid, record, known); err != nil {
		return err
	}
	if before != nil {
		// An attempt that died, or an allocation that is no longer.
		if err := m.undo(uid); err != nil {
			return err
		}
	}
	record.State = checkpoint.StateStarted
	document.Claims[uid] = record
	err := m.host.SaveIntent(document)
	if err == nil {
		err = m.apply(ctx, uid, planned)
	}
	if err == nil {
		err = m.complete(document, uid, record)
	}
	if err == nil {
		return nil
	}
	undone := m.undo(uid)
	if undone == nil {
		delete(document.Claims, uid)
	} else {
		record.State = checkpoint.StateStarted
	}
	return errors.Join(err, undone, m.host.Save(document))
}

// complete writes down that everything is there.
func (m *Manager) complete(document *checkpoint.Document, uid types.UID, record *checkpoint.Claim) error {
	record.State = checkpoint.StateCompleted
	document.Claims[uid] = record
	return m.host.Save(document)
}

// apply makes everything that the plan says, as far as it is missing. The spec
// comes last: what it refers to is there before a runtime can see it.
func (m *Manager) apply(ctx context.Context, uid types.UID, planned *plan) error {
	for _, container := range planned.containers {
		if err := m.host.Provision(ctx, container); err != nil {
			return err
		}
	}
	if err := m.host.CheckPaths(planned.spec); err != nil {
		return err
	}
	return m.host.WriteSpec(uid, planned.spec)
}

// undo takes everything away that apply can have made.
func (m *Manager) undo(uid types.UID) error {
	if err := m.host.RemoveSpec(uid); err != nil {
		return err
	}
	return m.host.RemoveClaimRegions(uid)
}

// overbookedError says that a claim does not fit beside prepared ones.
type overbookedError struct {
	message string
	others  map[types.UID]*checkpoint.Claim // those that are in the way
}

func (e *overbookedError) Error() string { return e.message }

// checkRoom makes sure that the claim fits beside the prepared ones.
func checkRoom(document *checkpoint.Document, uid types.UID, record *checkpoint.Claim, known devices) error {
	found := findOverlap(uid, record, document.Claims, known)
	if found == nil {
		return nil
	}
	out := &overbookedError{message: found.message, others: map[types.UID]*checkpoint.Claim{}}
	for _, other := range found.others {
		out.others[other] = document.Claims[other]
	}
	return out
}

// makeRoom unprepares claims that are in the way but are gone, and that no live
// pod and no container uses: the kubelet may have missed them. It refuses if there is none. It asks
// the API server, and takes the lock only after that.
func (m *Manager) makeRoom(ctx context.Context, overbooked *overbookedError) error {
	gone, err := m.goneAmong(ctx, overbooked)
	if err != nil {
		return err
	}
	removed := false
	err = m.locked(ctx, func(document *checkpoint.Document) error {
		for _, uid := range gone {
			record := document.Claims[uid]
			switch {
			case record == nil: // somebody was faster
				removed = true
			case reflect.DeepEqual(record, overbooked.others[uid]):
				removed = true
				if err := m.removeGone(ctx, document, uid); err != nil {
					return err
				}
			}
		}
		return m.host.Save(document)
	})
	if err == nil && !removed {
		err = refuse(ReasonOverlap, "%s", overbooked.message)
	}
	return err
}

// goneAmong looks which of the claims in the way are gone and used by nobody.
func (m *Manager) goneAmong(ctx context.Context, overbooked *overbookedError) ([]types.UID, error) {
	if len(overbooked.others) == 0 {
		return nil, nil
	}
	live, err := m.livePods(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; looking whether other claims are gone: %w", overbooked, err)
	}
	var gone []types.UID
	for _, uid := range slices.Sorted(maps.Keys(overbooked.others)) {
		record := overbooked.others[uid]
		if slices.ContainsFunc(record.Consumers, func(c checkpoint.Consumer) bool { return live[c.UID] }) {
			continue
		}
		isGone, err := m.isAbandoned(ctx, uid, record)
		if err != nil {
			return nil, fmt.Errorf("%w; looking whether claim %q is gone: %w", overbooked, record, err)
		}
		if isGone {
			gone = append(gone, uid)
		}
	}
	return gone, nil
}

// Unprepare takes the claim's effects away. It is no error when there are none.
func (m *Manager) Unprepare(ctx context.Context, uid types.UID) error {
	if uid == "" {
		return errors.New("the claim's UID is missing")
	}
	var record *checkpoint.Claim
	err := m.locked(ctx, func(document *checkpoint.Document) error {
		record = document.Claims[uid]
		if err := m.undo(uid); err != nil {
			return err
		}
		if record == nil {
			return nil
		}
		delete(document.Claims, uid)
		return m.host.Save(document)
	})
	if err == nil && record != nil {
		m.options.Status.Unprepared(uid, record)
	}
	return err
}

// results tells the kubelet about the devices of a record.
func results(record *checkpoint.Claim) []kubeletplugin.Device {
	out := make([]kubeletplugin.Device, 0, len(record.Devices))
	for i := range record.Devices {
		device := &record.Devices[i]
		result := kubeletplugin.Device{Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Name, CDIDeviceIDs: []string{device.CDIDevice}}
		if device.ShareID != "" {
			result.ShareID = new(types.UID(device.ShareID))
		}
		out = append(out, result)
	}
	return out
}
