// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/topodra/topodra/topology"
)

// MaxBytes is the largest input that is read.
const MaxBytes = 1 << 20

// Recorded is a machine with what the recording says beyond the links.
type Recorded struct {
	Machine *topology.Machine
	// Hardware, Source and Kind are free text from the recording: what machine it
	// is, where the record comes from, and how it was made.
	Hardware, Source, Kind string
	// Product is the GPU model that Hardware or the name mention; zero if none.
	Product topology.Product
	// NVL72 marks a tray of a rack whose NVLinks leave the machine.
	NVL72    bool
	GPUs     []RecordedGPU
	NICs     []NIC
	Warnings []topology.Warning
}

// RecordedGPU is what a recording says about one GPU apart from its links.
type RecordedGPU struct {
	// Index is the number the recording gives the GPU.
	Index int
	// NUMAText is the NUMA affinity as printed, such as "1" or "0,3-9,11-17"; ""
	// when not printed.
	NUMAText string
	// CPUAffinity is the CPU list as printed; "" when not printed.
	CPUAffinity string
	// GPUNUMAID is the NUMA node of the GPU's own memory, topology.NoNUMA when
	// not printed.
	GPUNUMAID int
}

// NIC is a network card of the recording. Entries that were not recorded are "".
type NIC struct {
	Name  string
	ToGPU []string
	ToNIC []string
}

// Load reads a recording from a file; the path "-" reads standard input. The
// machine is named after the file unless the recording has a name.
func Load(path string) (*Recorded, error) {
	if path == "-" {
		return Read(os.Stdin, "stdin")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine: %w", err)
	}
	defer f.Close()
	return Read(f, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
}

// Read reads a recording of either form from r.
func Read(r io.Reader, name string) (*Recorded, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", name, err)
	}
	return Parse(data, name)
}

// Parse reads a recording: JSON when the first character is a brace, the text of
// `nvidia-smi topo -m` otherwise. The name is used when the recording has none.
func Parse(data []byte, name string) (*Recorded, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n\ufeff"); len(trimmed) > 0 && trimmed[0] == '{' {
		return ParseJSON(data, name)
	}
	return ParseSMI(data, name)
}

func checkSize(data []byte) error {
	if len(data) > MaxBytes {
		return fmt.Errorf("it is longer than %d bytes", MaxBytes)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.New("it is empty")
	}
	return nil
}
