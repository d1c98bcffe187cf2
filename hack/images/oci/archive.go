// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const (
	mediaTypeIndex    = "application/vnd.oci.image.index.v1+json"
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"

	// nameAnnotation is under which containerd imports the image, refAnnotation is the tag within a layout.
	nameAnnotation = "io.containerd.image.name"
	refAnnotation  = "org.opencontainers.image.ref.name"
)

// Image is an image for one platform.
type Image struct {
	// Architecture as Go and OCI call it: amd64, arm64.
	Architecture string
	// Layers from the lowest up, each a list of files.
	Layers [][]File
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// User as in the image specification: "65532:65532"; empty is root.
	User string
	// Labels describe the image.
	Labels map[string]string
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type configFile struct {
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Config       execConfig `json:"config"`
	RootFS       rootFS     `json:"rootfs"`
}

type execConfig struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

func (b blob) descriptor() descriptor {
	return descriptor{MediaType: b.mediaType, Digest: b.digest, Size: int64(len(b.content))}
}

// Write writes an archive with an image of that name, such as "example.com/gpu/driver:1.0", for every platform, and returns the digest
// by which registries will know it: that of the image index.
func Write(w io.Writer, name string, images []Image) (string, error) {
	_, tag, ok := cutTag(name)
	if !ok {
		return "", fmt.Errorf("writing image %q: its name has no tag", name)
	}
	blobs := map[string][]byte{}
	add := func(b blob) descriptor {
		blobs[b.digest] = b.content
		return b.descriptor()
	}
	images = slices.Clone(images)
	slices.SortFunc(images, func(a, b Image) int { return cmp.Compare(a.Architecture, b.Architecture) })
	all := index{SchemaVersion: 2, MediaType: mediaTypeIndex}
	for i := range images {
		d, err := addImage(&images[i], add)
		if err != nil {
			return "", fmt.Errorf("writing image %q for %s: %w", name, images[i].Architecture, err)
		}
		all.Manifests = append(all.Manifests, d)
	}
	top, err := jsonBlob(mediaTypeIndex, all)
	if err != nil {
		return "", err
	}
	d := add(top)
	d.Annotations = map[string]string{nameAnnotation: fullName(name), refAnnotation: tag}
	layout, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaTypeIndex, Manifests: []descriptor{d}})
	if err != nil {
		return "", fmt.Errorf("writing image %q: %w", name, err)
	}
	if err := writeLayout(w, layout, blobs); err != nil {
		return "", fmt.Errorf("writing image %q: %w", name, err)
	}
	return top.digest, nil
}

// cutTag splits a reference into what is before and behind the colon of its tag.
func cutTag(name string) (repository, tag string, ok bool) {
	at := strings.LastIndexByte(name, ':')
	if at < 0 || strings.ContainsRune(name[at:], '/') || at == len(name)-1 {
		return name, "", false
	}
	return name[:at], name[at+1:], true
}

// fullName returns the name that container runtimes make of a short one, under which they look for what they have imported.
func fullName(name string) string {
	host, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + name
	default:
		return name
	}
}

// addImage adds the blobs of an image for one platform and returns the descriptor of its manifest.
func addImage(image *Image, add func(blob) descriptor) (descriptor, error) {
	if len(image.Entrypoint) == 0 || image.Architecture == "" {
		return descriptor{}, errors.New("it has no entrypoint or no architecture")
	}
	config := configFile{
		Architecture: image.Architecture, OS: "linux",
		Config: execConfig{
			User: image.User, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: image.Entrypoint, WorkingDir: "/", Labels: image.Labels,
		},
		RootFS: rootFS{Type: "layers"},
	}
	m := manifest{SchemaVersion: 2, MediaType: mediaTypeManifest}
	for _, files := range image.Layers {
		packed, err := newLayer(files)
		if err != nil {
			return descriptor{}, err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, packed.diffID)
		m.Layers = append(m.Layers, add(packed.blob))
	}
	configBlob, err := jsonBlob(mediaTypeConfig, config)
	if err != nil {
		return descriptor{}, err
	}
	m.Config = add(configBlob)
	manifestBlob, err := jsonBlob(mediaTypeManifest, m)
	if err != nil {
		return descriptor{}, err
	}
	d := add(manifestBlob)
	d.Platform = &platform{Architecture: image.Architecture, OS: "linux"}
	return d, nil
}

func jsonBlob(mediaType string, value any) (blob, error) {
	data, err := json.Marshal(value) // maps are written in the order of their keys
	if err != nil {
		return blob{}, fmt.Errorf("encoding %s: %w", mediaType, err)
	}
	return newBlob(mediaType, data), nil
}

// writeLayout writes the tar file.
func writeLayout(w io.Writer, layout []byte, blobs map[string][]byte) error {
	files := []File{
		{Path: "/oci-layout", Mode: 0o644, Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Path: "/index.json", Mode: 0o644, Content: layout},
	}
	for _, digest := range slices.Sorted(maps.Keys(blobs)) {
		files = append(files, File{Path: "/blobs/" + strings.Replace(digest, ":", "/", 1), Mode: 0o644, Content: blobs[digest]})
	}
	out := tar.NewWriter(w)
	for _, file := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Path[1:], Mode: file.Mode, Size: int64(len(file.Content))}
		if err := writeEntry(out, header, file.Content); err != nil {
			return err
		}
	}
	return out.Close()
}
