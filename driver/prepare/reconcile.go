// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/checkpoint"
)

// Reconcile compares checkpoint, CDI specs, region directories and API server
// both ways: what lacks its claim is removed, what lacks its effects gets them,
// and claims that the checkpoint has lost are taken up again. It is called at
// the start and then now and again. What it could not do is in the error; the
// rest is done.
//
// All that takes time, above all every question to the API server, comes before
// the lock is taken, so that a slow server delays no Prepare. What has changed in
// between is left alone: whoever has changed it knew better.
func (m *Manager) Reconcile(ctx context.Context) error {
	found, err := m.survey(ctx)
	if err != nil {
		return fmt.Errorf("reconciling claims: %w", err)
	}
	err = m.locked(ctx, func(document *checkpoint.Document) error {
		return errors.Join(
			m.reconcileRecords(ctx, document, found),
			m.reconcileLost(ctx, document, found),
			m.reconcileStrays(ctx, document, found),
			m.host.Save(document),
			m.host.RemoveTemps(),
		)
	})
	if err := errors.Join(err, m.host.RemoveSetAside()); err != nil {
		return fmt.Errorf("reconciling claims: %w", err)
	}
	return nil
}

// noticeBoot notices that the machine was started anew: no container of then is
// there any more, so their regions mean nothing. Records stay, since the pods stay,
// too. Every call does this before its own first effect, and Lookup before a
// container gets a region, so that the regions that are set aside are never those of
// this boot. They are out of the way and the boot is written down before anything
// else happens; removing them takes its time and may fail, and is for Reconcile.
func (m *Manager) noticeBoot(ctx context.Context, document *checkpoint.Document) error {
	bootID, err := m.host.BootID()
	if err != nil || document.BootID == bootID {
		return err
	}
	previous := document.BootID
	document.BootID = bootID
	if previous == "" {
		return nil // A new checkpoint, which is written with what comes next.
	}
	klog.FromContext(ctx).Info("The machine was started anew", "bootID", bootID, "previousBootID", previous)
	if err := m.host.SetRegionsAside(); err != nil {
		return err
	}
	return m.host.Save(document)
}

// reconcileRecords goes through what the checkpoint knows.
func (m *Manager) reconcileRecords(ctx context.Context, document *checkpoint.Document, found *survey) error {
	var errs []error
	for _, uid := range document.SortedUIDs() {
		record, seen := document.Claims[uid], found.records[uid]
		if seen == nil || !reflect.DeepEqual(seen.record, record) {
			continue
		}
		switch {
		case seen.gone:
			errs = append(errs, m.removeGone(ctx, document, uid))
		case seen.err != nil:
			errs = append(errs, seen.err)
		case seen.plan != nil:
			record.Consumers = seen.consumers
			if err := m.apply(ctx, uid, seen.plan); err != nil {
				errs = append(errs, m.repairFailed(uid, record, err))
			}
		case record.State == checkpoint.StateStarted && seen.live:
			// Whoever started it is dead, or it would hold the lock. The kubelet
			// tries again.
			if err := m.undo(uid); err != nil {
				errs = append(errs, fmt.Errorf("taking back the unfinished preparation of claim %q: %w", record, err))
				continue
			}
			delete(document.Claims, uid)
		}
	}
	return errors.Join(errs...)
}

// repairFailed tells people that a prepared claim is not what it should be.
func (m *Manager) repairFailed(uid types.UID, record *checkpoint.Claim, err error) error {
	m.options.Status.Failed(uid, record, err.Error())
	m.options.Events.Claim(record.Namespace, record.Name, uid, EventPrepareFailed, err.Error())
	return fmt.Errorf("repairing claim %q: %w", record, err)
}

// removeGone removes all that is left of a claim that is gone.
func (m *Manager) removeGone(ctx context.Context, document *checkpoint.Document, uid types.UID) error {
	record := document.Claims[uid]
	if err := m.undo(uid); err != nil {
		return fmt.Errorf("removing what is left of claim %q: %w", record, err)
	}
	delete(document.Claims, uid)
	klog.FromContext(ctx).Info("Removed what was left of a claim that is gone", "claim", klog.KRef(record.Namespace, record.Name), "uid", uid)
	m.options.Events.Node(EventOrphanRemoved, fmt.Sprintf("removed what was left of claim %q (%s), which is gone", record, uid))
	m.options.Status.Unprepared(uid, record)
	return nil
}

// reconcileLost takes up claims of live pods that the checkpoint does not know.
// They may be in use, so nothing is taken back when it fails, and what they use
// is counted even if it is too much.
func (m *Manager) reconcileLost(ctx context.Context, document *checkpoint.Document, found *survey) error {
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(found.lost)) {
		lost := found.lost[uid]
		if document.Claims[uid] != nil {
			continue
		}
		err := lost.err
		if err == nil {
			err = m.apply(ctx, uid, lost.plan)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("taking up claim \"%s/%s\" again: %w", lost.claim.Namespace, lost.claim.Name, err))
			m.options.Events.Claim(lost.claim.Namespace, lost.claim.Name, uid, EventPrepareFailed, err.Error())
			continue
		}
		lost.record.State, lost.record.PreparedAt = checkpoint.StateCompleted, m.options.Now().UTC()
		document.Claims[uid] = lost.record
		m.options.Status.Prepared(uid, lost.record)
	}
	return errors.Join(errs...)
}

// reconcileStrays removes specs and regions that belong to no record, unless a
// live pod may have need of them.
func (m *Manager) reconcileStrays(ctx context.Context, document *checkpoint.Document, found *survey) error {
	if found.state.missing {
		klog.FromContext(ctx).V(2).Info("A live pod refers to a claim that is gone; leaving unknown CDI specs alone")
		return nil
	}
	specs, err := m.host.ListSpecs()
	if err != nil {
		return err
	}
	regions, err := m.host.ListClaimRegions()
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(specs, regions)))) {
		if document.Claims[uid] != nil || found.state.claims[uid] != nil {
			continue
		}
		if err := m.undo(uid); err != nil {
			errs = append(errs, fmt.Errorf("removing what is left of an unknown claim: %w", err))
			continue
		}
		klog.FromContext(ctx).Info("Removed what was left of an unknown claim", "uid", uid)
		m.options.Events.Node(EventOrphanRemoved, fmt.Sprintf("removed the CDI spec and regions of claim UID %q, which no pod of this node uses", uid))
	}
	return errors.Join(errs...)
}
