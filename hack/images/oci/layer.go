// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// File is a regular file of a layer, or a symbolic link if Link is set.
type File struct {
	// Path is absolute and clean, such as /etc/passwd. Directories above it are made.
	Path string
	// Mode has permission bits only; links have none.
	Mode int64
	// Content of a regular file.
	Content []byte
	// Link is what a symbolic link points to.
	Link string
}

// blob is content with its digest.
type blob struct {
	mediaType string
	digest    string
	content   []byte
}

func newBlob(mediaType string, content []byte) blob {
	return blob{mediaType: mediaType, digest: digestOf(content), content: content}
}

// digestOf returns the digest as descriptors have it.
func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layer is a compressed layer and the digest of what it holds.
type layer struct {
	blob
	diffID string
}

// newLayer packs files. The order in which they are given does not matter; no path may be there twice.
func newLayer(files []File) (layer, error) {
	var unpacked bytes.Buffer
	if err := writeFiles(&unpacked, files); err != nil {
		return layer{}, fmt.Errorf("packing a layer: %w", err)
	}
	var packed bytes.Buffer
	compress := gzip.NewWriter(&packed) // without a name and a time in its header
	if _, err := compress.Write(unpacked.Bytes()); err != nil {
		return layer{}, fmt.Errorf("compressing a layer: %w", err)
	}
	if err := compress.Close(); err != nil {
		return layer{}, fmt.Errorf("compressing a layer: %w", err)
	}
	return layer{blob: newBlob(mediaTypeLayer, packed.Bytes()), diffID: digestOf(unpacked.Bytes())}, nil
}

// writeFiles writes a tar file with the files and the directories above them.
func writeFiles(w io.Writer, files []File) error {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	out := tar.NewWriter(w)
	made, taken := map[string]bool{"/": true}, map[string]bool{}
	for _, file := range files {
		if file.Path != path.Clean(file.Path) || !path.IsAbs(file.Path) || file.Path == "/" {
			return fmt.Errorf("file %q: its path is not absolute and clean", file.Path)
		}
		for dir := file.Path; dir != "/"; dir = path.Dir(dir) {
			if taken[dir] {
				return fmt.Errorf("file %q: there is another file %q", file.Path, dir)
			}
		}
		taken[file.Path] = true
		if err := writeDirs(out, made, path.Dir(file.Path)); err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Path[1:], Mode: file.Mode, Size: int64(len(file.Content))}
		if file.Link != "" {
			header = &tar.Header{Typeflag: tar.TypeSymlink, Name: file.Path[1:], Linkname: file.Link, Mode: 0o777}
		}
		if err := writeEntry(out, header, file.Content); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeDirs writes the directories of a path that were not written before.
func writeDirs(out *tar.Writer, made map[string]bool, dir string) error {
	if made[dir] {
		return nil
	}
	if err := writeDirs(out, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	mode := int64(0o755)
	if dir == "/tmp" {
		mode = 0o1777
	}
	return writeEntry(out, &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode}, nil)
}

// writeEntry writes one entry with the owner and the time that all have.
func writeEntry(out *tar.Writer, header *tar.Header, content []byte) error {
	header.ModTime, header.Format = time.Unix(0, 0).UTC(), tar.FormatUSTAR
	if err := out.WriteHeader(header); err != nil {
		return fmt.Errorf("file %q: %w", header.Name, err)
	}
	if header.Typeflag == tar.TypeReg {
		if _, err := out.Write(content); err != nil {
			return fmt.Errorf("file %q: %w", header.Name, err)
		}
	}
	return nil
}
