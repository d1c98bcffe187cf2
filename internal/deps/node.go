// SPDX-License-Identifier: Apache-2.0

package deps

import (
	_ "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	_ "github.com/containerd/nri/pkg/stub"
	_ "tags.cncf.io/container-device-interface/pkg/cdi"
)
