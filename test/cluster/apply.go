// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns the fields that Apply writes.
const fieldManager = "topodra-cluster"

// Apply creates or updates, as the admin, every object in the YAML files; directories are walked in the order of names.
// If kinds are given, only objects of these kinds are taken, the others are skipped.
func (c *Cluster) Apply(ctx context.Context, paths []string, kinds ...string) error {
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			ext := filepath.Ext(path)
			if entry.IsDir() || ext != ".yaml" && ext != ".yml" {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("reading a manifest: %w", err)
			}
			if err := c.ApplyYAML(ctx, data, kinds...); err != nil {
				return fmt.Errorf("applying %q: %w", path, err)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("applying manifests: %w", err)
		}
	}
	return nil
}

// ApplyYAML creates or updates, as the admin, every object in a stream of YAML documents, in their order. If kinds are
// given, only objects of these kinds are taken. Objects without a namespace whose kind needs one go to "default".
func (c *Cluster) ApplyYAML(ctx context.Context, data []byte, kinds ...string) error {
	objects, err := decodeObjects(data, kinds)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	for _, object := range objects {
		if err := applyObject(ctx, client, mapper, object); err != nil {
			return fmt.Errorf("applying %s %q: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// decodeObjects reads a stream of YAML documents. Documents that hold nothing are skipped.
func decodeObjects(data []byte, kinds []string) ([]*unstructured.Unstructured, error) {
	wanted := map[string]bool{}
	for _, kind := range kinds {
		wanted[kind] = true
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for n := 1; ; n++ {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("decoding YAML document %d: %w", n, err)
		case len(object.Object) == 0:
		case object.GetKind() == "" || object.GetAPIVersion() == "":
			return nil, fmt.Errorf("decoding YAML document %d: no apiVersion or no kind", n)
		case len(wanted) == 0 || wanted[object.GetKind()]:
			objects = append(objects, object)
		}
	}
}

func applyObject(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	gvk := schema.FromAPIVersionAndKind(object.GetAPIVersion(), object.GetKind())
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("looking up the resource: %w", err)
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		target = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	if _, err := target.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return fmt.Errorf("sending it to the API server: %w", err)
	}
	return nil
}
