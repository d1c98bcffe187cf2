// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
)

// File is one file of an image.
type File struct {
	// Path is absolute. Directories above it are made with mode 0755.
	Path string
	// Source is a file of this machine whose content and permission bits are taken; symbolic links are followed.
	Source string
	// Content and Mode are what the file holds and its permission bits, if there is no Source.
	Content []byte
	Mode    os.FileMode
	// Link is the target of a symbolic link, if this is one.
	Link string
	// Dir says that this is a directory with permission bits Mode.
	Dir bool
}

// Image is a container image of one layer.
type Image struct {
	// Ref is its full name with a tag, as in docker.io/local/busybox:1.
	Ref string
	// Files are the content of the layer, in any order.
	Files []File
	// Entrypoint, Cmd and Env are the defaults of containers.
	Entrypoint []string
	Cmd        []string
	Env        []string
}

// imageConfig is the part of an image configuration that runtimes need; see the OCI image specification.
type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Cmd        []string `json:"Cmd,omitempty"`
		Env        []string `json:"Env,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// manifest is an entry of manifest.json in an archive as `docker save` writes it.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Archive writes the image as `docker save` would. Equal images give equal bytes.
func (i Image) Archive(w io.Writer) error {
	var layer bytes.Buffer
	if err := i.writeLayer(&layer); err != nil {
		return fmt.Errorf("packing image %q: %w", i.Ref, err)
	}
	digest := sha256.Sum256(layer.Bytes())
	config := imageConfig{Architecture: runtime.GOARCH, OS: "linux"}
	config.Config.Entrypoint, config.Config.Cmd, config.Config.Env = i.Entrypoint, i.Cmd, i.Env
	config.RootFS.Type = "layers"
	config.RootFS.DiffIDs = []string{"sha256:" + hex.EncodeToString(digest[:])}
	configJSON, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("packing image %q: %w", i.Ref, err)
	}
	manifestJSON, err := json.Marshal([]manifest{{Config: "config.json", RepoTags: []string{i.Ref}, Layers: []string{"layer.tar"}}})
	if err != nil {
		return fmt.Errorf("packing image %q: %w", i.Ref, err)
	}
	archive := tar.NewWriter(w)
	err = errors.Join(
		writeFile(archive, "layer.tar", layer.Bytes(), 0o644),
		writeFile(archive, "config.json", configJSON, 0o644),
		writeFile(archive, "manifest.json", manifestJSON, 0o644),
		archive.Close(),
	)
	if err != nil {
		return fmt.Errorf("packing image %q: %w", i.Ref, err)
	}
	return nil
}

// writeLayer writes the files as a tar archive, directories first.
func (i Image) writeLayer(w io.Writer) error {
	layer := tar.NewWriter(w)
	seen := map[string]bool{".": true}
	for _, file := range i.Files {
		if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || file.Path == "/" {
			return fmt.Errorf("file %q: want a plain absolute path", file.Path)
		}
		name := strings.TrimPrefix(file.Path, "/")
		if err := writeParents(layer, path.Dir(name), seen); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("file %q is there twice", file.Path)
		}
		seen[name] = true
		if err := file.write(layer, name); err != nil {
			return fmt.Errorf("file %q: %w", file.Path, err)
		}
	}
	return layer.Close()
}

// writeParents writes a directory and those above it that are not there yet.
func writeParents(layer *tar.Writer, dir string, seen map[string]bool) error {
	if seen[dir] {
		return nil
	}
	if err := writeParents(layer, path.Dir(dir), seen); err != nil {
		return err
	}
	seen[dir] = true
	return layer.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
}

func (f File) write(layer *tar.Writer, name string) error {
	switch {
	case f.Dir:
		return layer.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: tarMode(f.Mode)})
	case f.Link != "":
		return layer.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: f.Link, Mode: 0o777})
	case f.Source == "":
		return writeFile(layer, name, f.Content, tarMode(f.Mode))
	}
	info, err := os.Stat(f.Source)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(f.Source)
	if err != nil {
		return err
	}
	return writeFile(layer, name, content, tarMode(info.Mode()))
}

// tarMode returns the permission bits, with sticky, setuid and setgid where tar has them.
func tarMode(mode os.FileMode) int64 {
	bits := int64(mode.Perm())
	for bit, value := range map[os.FileMode]int64{os.ModeSetuid: 0o4000, os.ModeSetgid: 0o2000, os.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			bits |= value
		}
	}
	return bits
}

// writeFile writes a regular file of root's, as old as the epoch.
func writeFile(w *tar.Writer, name string, content []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
