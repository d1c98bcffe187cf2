// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a version of up to three numbers.
type Version struct {
	Major, Minor, Patch int
}

// maxVersionPart bounds each number, so that the text stays far below the 64
// bytes that a device attribute may have.
const maxVersionPart = 1_000_000_000

// ParseVersion reads "550.54.15", "535.104.05" or "12.4". Missing numbers are 0.
// Leading zeros, which driver versions have and semantic versions must not have,
// are dropped.
func ParseVersion(text string) (Version, error) {
	parts := strings.Split(text, ".")
	if len(parts) > 3 {
		return Version{}, fmt.Errorf("parsing version %q: it has %d parts, expected at most 3", text, len(parts))
	}
	var numbers [3]int
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, 31)
		if err != nil || number > maxVersionPart {
			return Version{}, fmt.Errorf("parsing version %q: %q is not a number up to %d", text, part, maxVersionPart)
		}
		numbers[i] = int(number)
	}
	return Version{numbers[0], numbers[1], numbers[2]}, nil
}

// String returns the version in the form of semantic versioning.
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}
