// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// ErrNotSupported is the answer to claims of a driver that only publishes.
var ErrNotSupported = errors.New("not supported in this version of the driver, which publishes devices but does not hand them to containers")

// preparer is what answers claims: prepare.Manager.
type preparer interface {
	PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error)
	UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error)
}

// plugin answers the kubelet and hears of errors in the background.
type plugin struct {
	claims   preparer     // nil only publishes
	health   *healthWatch // nil tells nothing about health
	poolName string
	events   *eventSink
	fatal    context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = &plugin{}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	if p.claims != nil {
		return p.claims.PrepareResourceClaims(ctx, claims)
	}
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		results[claim.UID] = kubeletplugin.PrepareResult{
			Err: fmt.Errorf("preparing claim %q: %w", klog.KObj(claim), ErrNotSupported),
		}
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	if p.claims != nil {
		return p.claims.UnprepareResourceClaims(ctx, claims)
	}
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		results[claim.UID] = fmt.Errorf("unpreparing claim %q: %w", claim.NamespacedName, ErrNotSupported)
	}
	return results, nil
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (p *plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if p.health == nil || !p.health.reports {
		return kubeletplugin.ErrHealthNotSupported
	}
	return p.health.stream(ctx, p.poolName, reports)
}

// HandleError implements kubeletplugin.DRAPlugin.
func (p *plugin) HandleError(ctx context.Context, err error, msg string) {
	logger := klog.FromContext(ctx)
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		publishErrors.WithLabelValues(resultDropped).Inc()
		features := cmp.Or(strings.Join(dropped.DisabledFeatures(), ", "), "unknown")
		logger.Error(err, "The API server dropped fields of a ResourceSlice, so devices are not offered as they should be",
			"pool", dropped.PoolName, "slice", dropped.SliceIndex, "disabledFeatures", features)
		p.events.warn(ReasonFieldsDropped, fmt.Sprintf(
			"The API server dropped fields of ResourceSlice #%d of pool %q, so its devices are not offered as they should be. Feature gates to enable: %s",
			dropped.SliceIndex, dropped.PoolName, features))
	case apierrors.IsInvalid(err):
		publishErrors.WithLabelValues(resultInvalid).Inc()
		logger.Error(err, "The API server rejected a ResourceSlice", "activity", msg)
		p.events.warn(ReasonPublishingFailed, "The API server rejected a ResourceSlice: "+err.Error())
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		publishErrors.WithLabelValues(resultRetried).Inc()
		logger.Error(err, "Retrying after a background error", "activity", msg)
	default:
		logger.Error(err, "Giving up after a background error", "activity", msg)
		p.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}
