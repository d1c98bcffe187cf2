// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/classic"
	"github.com/topodra/topodra/webhook/convert"
)

// ForeignScheduler says what becomes of pods for our devices that name a scheduler of others.
type ForeignScheduler string

const (
	// ForeignReject refuses them: only one scheduler may hand out a device.
	ForeignReject ForeignScheduler = "Reject"
	// ForeignIgnore leaves them alone altogether.
	ForeignIgnore ForeignScheduler = "Ignore"
)

// Privileged says what becomes of pods that ask for GPUs in the classic vocabulary and have a privileged container.
type Privileged string

const (
	// PrivilegedReject refuses them, as the classic webhook does: a privileged container sees every GPU of its node.
	PrivilegedReject Privileged = "Reject"
	// PrivilegedAllow converts them.
	PrivilegedAllow Privileged = "Allow"
)

// Labels of pods and namespaces that the webhook leaves alone, with the value ignore.
const (
	LabelIgnore        = "gpu.topodra.dev/webhook"
	LabelClassicIgnore = "hami.io/webhook"
	labelIgnoreValue   = "ignore"
)

// Config is what an administrator decides.
type Config struct {
	// Vocabulary of the requests that are converted.
	Vocabulary classic.Vocabulary
	// Convert says whether they are converted at all.
	Convert bool
	// SchedulerName is our scheduler's.
	SchedulerName string
	// ReplacedSchedulers are names that pods have without meaning it: they are replaced by SchedulerName.
	ReplacedSchedulers []string
	// Foreign is for pods with other names.
	Foreign ForeignScheduler
	// Privileged is for pods with privileged containers.
	Privileged Privileged
	// ClassGPU and ClassMIG are the DeviceClasses of converted pods.
	ClassGPU, ClassMIG string
	// MemorySizesMiB are sizes of GPU memory that percentages reckon with, besides those of published GPUs.
	MemorySizesMiB []int64
	// ShareInitContainers lets init containers use shares of containers that start later; it needs NRI on the nodes.
	ShareInitContainers bool
}

// DefaultConfig returns what holds unless an administrator says otherwise.
func DefaultConfig() Config {
	return Config{
		Vocabulary: classic.Default(), Convert: true,
		SchedulerName: api.SchedulerName, ReplacedSchedulers: []string{corev1.DefaultSchedulerName, "hami-scheduler"},
		Foreign: ForeignReject, Privileged: PrivilegedReject,
		ClassGPU: api.DeviceClassGPU, ClassMIG: api.DeviceClassMIG, ShareInitContainers: true,
	}
}

// Validate reports every problem with its field path.
func (c *Config) Validate() field.ErrorList {
	errs := c.Vocabulary.Validate()
	for path, name := range map[string]string{"schedulerName": c.SchedulerName, "classGPU": c.ClassGPU, "classMIG": c.ClassMIG} {
		for _, problem := range validation.IsDNS1123Subdomain(name) {
			errs = append(errs, field.Invalid(field.NewPath(path), name, problem))
		}
	}
	if choices := []ForeignScheduler{ForeignReject, ForeignIgnore}; !slices.Contains(choices, c.Foreign) {
		errs = append(errs, field.NotSupported(field.NewPath("foreignScheduler"), c.Foreign, choices))
	}
	if choices := []Privileged{PrivilegedReject, PrivilegedAllow}; !slices.Contains(choices, c.Privileged) {
		errs = append(errs, field.NotSupported(field.NewPath("privileged"), c.Privileged, choices))
	}
	sizes := field.NewPath("memorySizesMiB")
	if len(c.MemorySizesMiB) > convert.MaxSizes {
		errs = append(errs, field.TooMany(sizes, len(c.MemorySizesMiB), convert.MaxSizes))
	}
	for i, size := range c.MemorySizesMiB {
		if size < 1 || size > classic.MaxMemoryMiB {
			errs = append(errs, field.Invalid(sizes.Index(i), size, fmt.Sprintf("must be from 1 to %d", classic.MaxMemoryMiB)))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return slices.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errs
}
