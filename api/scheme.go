// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// GroupName is the API group of all kinds in this package.
const GroupName = "gpu.topodra.dev"

// Version is the only version of the group so far.
const Version = "v1alpha1"

// Kinds of the group.
const (
	KindGPUClaimConfig               = "GPUClaimConfig"
	KindTopologyDynamicResourcesArgs = "TopologyDynamicResourcesArgs"
)

// GroupVersion returns gpu.topodra.dev/v1alpha1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: Version}
}

// AddToScheme registers the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(GroupVersion(), &GPUClaimConfig{}, &TopologyDynamicResourcesArgs{})
}

// decodeStrict decodes JSON into one of our kinds. A document without
// apiVersion and kind is taken for fallback when that is not nil. Unknown and
// duplicate fields are errors, and field names are case-sensitive.
func decodeStrict(raw []byte, fallback *schema.GroupVersionKind) (runtime.Object, error) {
	scheme := runtime.NewScheme()
	AddToScheme(scheme)
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})
	obj, gvk, err := decoder.Decode(raw, fallback, nil)
	switch {
	case err == nil:
		return obj, nil
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return nil, fmt.Errorf("decoding configuration: set apiVersion %q and a kind: %w", GroupVersion(), err)
	case runtime.IsNotRegisteredError(err) && gvk != nil:
		return nil, fmt.Errorf("decoding configuration: apiVersion %q, kind %q is unknown here; known are %q and %q of apiVersion %q",
			gvk.GroupVersion(), gvk.Kind, KindGPUClaimConfig, KindTopologyDynamicResourcesArgs, GroupVersion())
	default:
		return nil, fmt.Errorf("decoding configuration: %w", err)
	}
}
