// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/gather"
)

// settle is how long changes are collected before they are shown: a pod with several claims changes several objects at once.
const settle = 200 * time.Millisecond

// View is where and how a watched report is shown.
type View struct {
	// Node is the only node to show, all if empty.
	Node string
	// Draw writes a report; equal texts are shown once.
	Draw func(io.Writer, *Report) error
	// Show receives each new text.
	Show func(text []byte) error
	// Warn tells about a connection that is lost; what was shown stays.
	Warn func(text string)
}

// Watch shows the report and shows it again whenever it changes, until ctx ends, which is no error.
func Watch(ctx context.Context, client kubernetes.Interface, planner *fit.Planner, view View) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{planner: planner, view: view, cancel: cancel, changed: make(chan struct{}, 1)}
	stop, err := w.start(ctx, client)
	if err != nil {
		return err
	}
	defer stop()
	if cache.WaitForCacheSync(ctx.Done(), w.published.HasSynced, w.claims.HasSynced) {
		err = w.run(ctx)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type watcher struct {
	planner           *fit.Planner
	view              View
	cancel            context.CancelCauseFunc
	changed           chan struct{} // has one element when something may have changed
	published, claims cache.SharedIndexInformer
	warned            sync.Map // by kind of object
}

// start starts informers for what the report is made of.
func (w *watcher) start(ctx context.Context, client kubernetes.Interface) (stop func(), err error) {
	ofDriver := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DriverName).String()
	onlyOurs := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = ofDriver }))
	all := informers.NewSharedInformerFactory(client, 0)
	w.published = onlyOurs.Resource().V1().ResourceSlices().Informer()
	w.claims = all.Resource().V1().ResourceClaims().Informer()
	for what, informer := range map[string]cache.SharedIndexInformer{"ResourceSlices": w.published, "ResourceClaims": w.claims} {
		if err := w.observe(what, informer); err != nil {
			return nil, fmt.Errorf("watching %s: %w", what, err)
		}
	}
	onlyOurs.Start(ctx.Done())
	all.Start(ctx.Done())
	return func() {
		w.cancel(nil)
		onlyOurs.Shutdown()
		all.Shutdown()
	}, nil
}

func (w *watcher) observe(what string, informer cache.SharedIndexInformer) error {
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { w.failed(what, err) }); err != nil {
		return fmt.Errorf("setting an error handler: %w", err)
	}
	poke := func(any) {
		w.warned.Delete(what)
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(_, now any) { poke(now) }, DeleteFunc: poke,
	})
	if err != nil {
		return fmt.Errorf("adding an event handler: %w", err)
	}
	return nil
}

// failed ends the watch when nothing will ever come, and warns once otherwise: informers try again by themselves.
func (w *watcher) failed(what string, err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, context.Canceled), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		// The usual ends of a watch.
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsNotFound(err):
		explained := gather.Explain(what, err)
		if apierrors.IsForbidden(err) {
			explained = fmt.Errorf("watching %s in the whole cluster: not allowed; a role with the verbs \"list\" and \"watch\" on resourceslices and "+
				"resourceclaims (resource.k8s.io) is needed: %w", what, err)
		}
		w.cancel(explained)
	default:
		if _, again := w.warned.LoadOrStore(what, true); !again {
			w.view.Warn(fmt.Sprintf("watching %s: %v; trying again, what is shown may be old", what, err))
		}
	}
}

// run shows the report now and after changes.
func (w *watcher) run(ctx context.Context) error {
	var shown []byte
	for first := true; ; first = false {
		text, err := w.draw(ctx)
		if err != nil {
			return err
		}
		if first || !bytes.Equal(text, shown) {
			if err := w.view.Show(text); err != nil {
				return fmt.Errorf("writing the status: %w", err)
			}
			shown = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		select { // what came meanwhile is in the next picture
		case <-w.changed:
		default:
		}
	}
}

func (w *watcher) draw(ctx context.Context) ([]byte, error) {
	report, err := build(ctx, w.planner, objects[resourceapi.ResourceSlice](w.published), objects[resourceapi.ResourceClaim](w.claims), w.view.Node)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := w.view.Draw(&text, report); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// objects copies what an informer holds.
func objects[T any](informer cache.SharedIndexInformer) []T {
	list := informer.GetStore().List()
	out := make([]T, 0, len(list))
	for _, item := range list {
		if object, ok := item.(*T); ok {
			out = append(out, *object)
		}
	}
	return out
}
