// SPDX-License-Identifier: Apache-2.0

package placement

import "fmt"

// Links says in words, to be put behind a number of GPUs, how a policy wants them to be
// linked; empty if it wants nothing.
func (p Policy) Links() string {
	text := ""
	switch p.Level {
	case LevelNVLink:
		text = " over NVLink"
	case LevelPCIe:
		text = " below one PCIe host bridge"
	case LevelNUMA:
		text = " within one NUMA node"
	case LevelAny:
	}
	if p.MinMBps > 0 {
		text += fmt.Sprintf(" at %.0f GB/s", p.MinMBps.GBps())
	}
	return text
}
