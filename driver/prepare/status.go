// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metav1apply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
)

// StatusSink is told what to show in the status of claims. It returns at once:
// a claim does not wait for its status.
type StatusSink interface {
	// Prepared shows the devices as ready.
	Prepared(uid types.UID, record *checkpoint.Claim)

	// Failed shows the devices as not ready.
	Failed(uid types.UID, record *checkpoint.Claim, message string)

	// Unprepared takes the devices out.
	Unprepared(uid types.UID, record *checkpoint.Claim)
}

// FieldManager owns our entries of status.devices. Those of other drivers have
// other owners, so that server-side apply leaves them alone.
const FieldManager = api.DriverName

// Reasons of the condition Ready.
const (
	conditionReady    = "Ready"
	readyPrepared     = "Prepared"
	readyNotAvailable = "NotAvailable"
)

// StatusWriter writes statuses in the background, the newest for each claim, and
// tries again until it works or the claim is gone.
type StatusWriter struct {
	client kubernetes.Interface
	now    func() time.Time
	queue  workqueue.TypedRateLimitingInterface[types.UID]

	mu      sync.Mutex
	pending map[types.UID]desired
}

// desired is what a claim's status is to say.
type desired struct {
	namespace, name string
	devices         []*resourceapply.AllocatedDeviceStatusApplyConfiguration
}

var _ StatusSink = &StatusWriter{}

// NewStatusWriter returns a writer that works while Run runs.
func NewStatusWriter(client kubernetes.Interface) *StatusWriter {
	return &StatusWriter{client: client, now: time.Now, pending: map[types.UID]desired{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, time.Minute))}
}

// Prepared implements StatusSink.
func (w *StatusWriter) Prepared(uid types.UID, record *checkpoint.Claim) {
	w.set(uid, record, w.entries(record, metav1.ConditionTrue, readyPrepared, "the device is ready for the containers of the claim's pods"))
}

// Failed implements StatusSink.
func (w *StatusWriter) Failed(uid types.UID, record *checkpoint.Claim, message string) {
	w.set(uid, record, w.entries(record, metav1.ConditionFalse, readyNotAvailable, shorten(message)))
}

// Unprepared implements StatusSink.
func (w *StatusWriter) Unprepared(uid types.UID, record *checkpoint.Claim) { w.set(uid, record, nil) }

// set replaces what is to be written.
func (w *StatusWriter) set(uid types.UID, record *checkpoint.Claim, devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration) {
	w.mu.Lock()
	w.pending[uid] = desired{namespace: record.Namespace, name: record.Name, devices: devices}
	w.mu.Unlock()
	w.queue.Add(uid)
}

// entries makes one entry for each result of the allocation.
func (w *StatusWriter) entries(record *checkpoint.Claim, ready metav1.ConditionStatus, reason, message string) []*resourceapply.AllocatedDeviceStatusApplyConfiguration {
	out := make([]*resourceapply.AllocatedDeviceStatusApplyConfiguration, 0, len(record.Devices))
	for i := range record.Devices {
		device := &record.Devices[i]
		entry := resourceapply.AllocatedDeviceStatus().
			WithDriver(api.DriverName).WithPool(device.Pool).WithDevice(device.Name).
			WithData(runtime.RawExtension{Raw: statusData(record, device)}).
			WithConditions(metav1apply.Condition().WithType(conditionReady).WithStatus(ready).WithReason(reason).WithMessage(message).
				WithLastTransitionTime(metav1.NewTime(w.now().Truncate(time.Second))))
		if device.ShareID != "" {
			entry.WithShareID(device.ShareID)
		}
		out = append(out, entry)
	}
	return out
}

// DeviceData is what status.devices[].data says about a device.
type DeviceData struct {
	// UUID and PCIBusID say which device it is.
	UUID     string `json:"uuid"`
	PCIBusID string `json:"pciBusID,omitempty"`

	// Request of the claim that the device was allocated for.
	Request string `json:"request"`

	// MemoryLimitMiB and CoresLimitPercent are absent where nothing is limited.
	MemoryLimitMiB    int64 `json:"memoryLimitMiB,omitempty"`
	CoresLimitPercent int64 `json:"coresLimitPercent,omitempty"`

	// Enforcer keeps the limits.
	Enforcer string `json:"enforcer,omitempty"`
}

// statusData encodes DeviceData, far below the API's limit of 10 KiB.
func statusData(record *checkpoint.Claim, device *checkpoint.Device) []byte {
	data := DeviceData{UUID: device.UUID, PCIBusID: device.PCIAddress, Request: device.Request}
	if device.Limit != nil {
		data.MemoryLimitMiB, data.CoresLimitPercent, data.Enforcer = device.Limit.MemoryMiB, device.Limit.CoresPercent, record.Enforcer
	}
	out, err := json.Marshal(data)
	if err != nil {
		// Strings and numbers always encode.
		panic(fmt.Sprintf("encoding device data: %v", err))
	}
	return out
}

// Run writes until ctx ends.
func (w *StatusWriter) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	for {
		uid, quit := w.queue.Get()
		if quit {
			return
		}
		w.process(ctx, uid)
	}
}

// process writes one claim's status.
func (w *StatusWriter) process(ctx context.Context, uid types.UID) {
	defer w.queue.Done(uid)
	w.mu.Lock()
	want, ok := w.pending[uid]
	delete(w.pending, uid)
	w.mu.Unlock()
	if !ok {
		return
	}
	err := w.write(ctx, uid, want)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, or another claim of that name: there is nothing to show it on.
		w.queue.Forget(uid)
	default:
		klog.FromContext(ctx).Error(err, "Writing the status of a claim failed; trying again", "claim", klog.KRef(want.namespace, want.name))
		w.mu.Lock()
		if _, newer := w.pending[uid]; !newer {
			w.pending[uid] = want
		}
		w.mu.Unlock()
		w.queue.AddRateLimited(uid)
	}
}

// write applies our entries. The UID makes the API server refuse a claim that
// only has the same name.
func (w *StatusWriter) write(ctx context.Context, uid types.UID, want desired) error {
	claim := resourceapply.ResourceClaim(want.name, want.namespace).WithUID(uid).
		WithStatus(resourceapply.ResourceClaimStatus().WithDevices(want.devices...))
	_, err := w.client.ResourceV1().ResourceClaims(want.namespace).ApplyStatus(ctx, claim, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}

// allocatedTo says whether the claim's allocation has devices of this driver on
// the node.
func allocatedTo(claim *resourceapi.ResourceClaim, nodeName string) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if result.Driver == api.DriverName && result.Pool == nodeName {
			return true
		}
	}
	return false
}
