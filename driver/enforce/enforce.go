// SPDX-License-Identifier: Apache-2.0

package enforce

import "context"

// Enforcer keeps the limits of containers.
type Enforcer interface {
	// Name is stable: it is written into checkpoints and claim statuses.
	Name() string

	// Check says whether limits can be kept on this node. The error tells what
	// is missing. It is cheap enough to be called for every claim.
	Check(ctx context.Context) error

	// NeedsNRI says that Start has to be called, for which the driver must hear
	// of every container from the runtime.
	NeedsNRI() bool

	// Edits returns what the container needs besides its devices. Pure.
	Edits(container *Container) (Edits, error)

	// OwnsEnv says that a container must not bring this variable itself, since
	// it would change or remove limits.
	OwnsEnv(name string) bool

	// Provision makes what Edits refers to on the host. It is idempotent and
	// called before each start of the container's creation.
	Provision(ctx context.Context, container *Container) error

	// Start is called when the container's cgroup is there and none of its
	// processes runs yet. An error keeps the container from running.
	Start(ctx context.Context, container *Container, cgroup string) error
}

// Edits are changes to a container.
type Edits struct {
	// Env in a stable order, each name once.
	Env []EnvVar

	// Mounts in a stable order, each container path once.
	Mounts []Mount
}

// EnvVar is one environment variable.
type EnvVar struct{ Name, Value string }

// Mount is one bind mount. It never carries devices or set-user-ID programs.
type Mount struct {
	HostPath, ContainerPath string
	ReadOnly                bool
}

// Options of the bind mount, as OCI writes them.
func (m Mount) Options() []string {
	access := "rw"
	if m.ReadOnly {
		access = "ro"
	}
	return []string{access, "nosuid", "nodev", "rbind"}
}
