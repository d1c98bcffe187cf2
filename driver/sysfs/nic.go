// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// nic is a network card.
type nic struct {
	name string
	path pciPath
}

// NearestNIC returns the name of the network card that is closest to a PCI device
// and not on another NUMA node; "" when there is none. Cards for RDMA count before
// all others, whose interfaces are looked at only on nodes without RDMA. Virtual
// functions do not count. Of several equally close ones, the first by name wins,
// where "mlx5_2" comes before "mlx5_10".
func (r *Reader) NearestNIC(address device.PCIAddress) (string, error) {
	own, err := r.pathOf(address)
	if err != nil {
		return "", err
	}
	nics, err := r.nics("infiniband")
	if err == nil && len(nics) == 0 {
		nics, err = r.nics("net")
	}
	if err != nil {
		return "", fmt.Errorf("looking for network cards: %w", err)
	}
	best, nearest := topology.SYS, ""
	for _, card := range nics {
		if class := r.classOf(own, card.path); class < best {
			best, nearest = class, card.name
		}
	}
	return nearest, nil
}

// nics lists the cards of a device class in order of name. Entries that are not
// PCI devices, such as bridges and tunnels, are left out.
func (r *Reader) nics(class string) ([]nic, error) {
	dir := path.Join("class", class)
	entries, err := fs.ReadDir(r.fsys, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var out []nic
	for _, entry := range entries {
		target, err := r.fsys.ReadLink(path.Join(dir, entry.Name()))
		if err != nil {
			continue // A plain file, such as bonding_masters.
		}
		found, err := parsePCIPath(target)
		if err != nil || r.isVirtualFunction(found) {
			continue
		}
		out = append(out, nic{name: entry.Name(), path: found})
	}
	slices.SortFunc(out, func(a, b nic) int { return compareNatural(a.name, b.name) })
	return out, nil
}

// isVirtualFunction reports whether a device is a part of another one.
func (r *Reader) isVirtualFunction(p pciPath) bool {
	_, err := fs.Stat(r.fsys, path.Join("devices", path.Join(p...), "physfn"))
	return err == nil
}

// compareNatural orders names so that their numbers count as numbers.
func compareNatural(a, b string) int {
	restA, restB := a, b
	for restA != "" && restB != "" {
		digitsA, digitsB := leadingDigits(restA), leadingDigits(restB)
		if digitsA > 0 && digitsB > 0 {
			numberA, numberB := strings.TrimLeft(restA[:digitsA], "0"), strings.TrimLeft(restB[:digitsB], "0")
			if c := cmp.Or(cmp.Compare(len(numberA), len(numberB)), cmp.Compare(numberA, numberB)); c != 0 {
				return c
			}
			restA, restB = restA[digitsA:], restB[digitsB:]
			continue
		}
		if restA[0] != restB[0] {
			return cmp.Compare(restA[0], restB[0])
		}
		restA, restB = restA[1:], restB[1:]
	}
	return cmp.Or(cmp.Compare(len(restA), len(restB)), cmp.Compare(a, b))
}

// leadingDigits counts the digits at the start.
func leadingDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
