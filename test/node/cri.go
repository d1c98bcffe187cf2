// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels that the kubelet puts on what it makes.
const (
	labelPodUID    = "io.kubernetes.pod.uid"
	labelContainer = "io.kubernetes.container.name"
)

// criClient speaks the kubelet's protocol with containerd.
type criClient struct {
	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

// dialCRI makes a client; it connects when it is used, and again after containerd was away.
func dialCRI(socket string) (*criClient, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting to containerd: %w", err)
	}
	return &criClient{conn: conn, runtime: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn)}, nil
}

func (c *criClient) close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("closing the connection to containerd: %w", err)
	}
	return nil
}

// ready reports, as an error, that containerd cannot run containers. That there is no network is no reason: the configuration
// is loaded later.
func (c *criClient) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, err := c.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return fmt.Errorf("asking containerd for its status: %w", err)
	}
	for _, condition := range status.GetStatus().GetConditions() {
		if condition.GetType() == cri.RuntimeReady && condition.GetStatus() {
			return nil
		}
	}
	return fmt.Errorf("asking containerd for its status: not ready: %v", status.GetStatus().GetConditions())
}

func (c *criClient) hasImage(ctx context.Context, ref string) (bool, error) {
	status, err := c.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		return false, fmt.Errorf("asking containerd for image %q: %w", ref, err)
	}
	return status.GetImage() != nil, nil
}

// Container is one container of the node, in whatever state.
type Container struct {
	// ID is containerd's.
	ID string
	// PodUID and Name say what it is to the API server.
	PodUID types.UID
	Name   string
	// Running says whether it runs.
	Running bool
	// Attempt counts restarts of the container within its pod.
	Attempt uint32
}

// Containers returns the containers of a pod, or of all pods if uid is empty, in the order of pod, name and attempt.
func (n *Node) Containers(ctx context.Context, uid types.UID) ([]Container, error) {
	filter := &cri.ContainerFilter{}
	if uid != "" {
		filter.LabelSelector = map[string]string{labelPodUID: string(uid)}
	}
	list, err := n.cri.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("listing the containers of node %q: %w", n.opts.Name, err)
	}
	var containers []Container
	for _, c := range list.GetContainers() {
		containers = append(containers, Container{
			ID: c.GetId(), PodUID: types.UID(c.GetLabels()[labelPodUID]), Name: c.GetLabels()[labelContainer],
			Running: c.GetState() == cri.ContainerState_CONTAINER_RUNNING, Attempt: c.GetMetadata().GetAttempt(),
		})
	}
	slices.SortFunc(containers, func(a, b Container) int {
		if order := strings.Compare(string(a.PodUID)+"/"+a.Name, string(b.PodUID)+"/"+b.Name); order != 0 {
			return order
		}
		return int(a.Attempt) - int(b.Attempt)
	})
	return containers, nil
}

// ExecResult is what a command in a container said.
type ExecResult struct {
	Stdout, Stderr string
	ExitCode       int32
}

// ErrNotRunning is wrapped by errors about containers that do not run.
var ErrNotRunning = errors.New("container does not run")

// Exec runs a command in a running container of a pod. A status other than 0 is no error.
func (n *Node) Exec(ctx context.Context, pod *corev1.Pod, container string, command ...string) (ExecResult, error) {
	containers, err := n.Containers(ctx, pod.UID)
	if err != nil {
		return ExecResult{}, err
	}
	i := slices.IndexFunc(containers, func(c Container) bool { return c.Name == container && c.Running })
	if i < 0 {
		return ExecResult{}, fmt.Errorf("running %q in container %q of pod %q: %w", command, container, pod.Name, ErrNotRunning)
	}
	answer, err := n.cri.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: containers[i].ID, Cmd: command, Timeout: 60})
	if err != nil {
		return ExecResult{}, fmt.Errorf("running %q in container %q of pod %q: %w", command, container, pod.Name, err)
	}
	return ExecResult{Stdout: string(answer.GetStdout()), Stderr: string(answer.GetStderr()), ExitCode: answer.GetExitCode()}, nil
}

// Logs returns what the attempts of a container have written, also when it has ended; without the marks of the log format.
func (n *Node) Logs(pod *corev1.Pod, container string) (string, error) {
	dir := filepath.Join(n.podLogs(), fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), container)
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return "", fmt.Errorf("looking for logs of container %q of pod %q: %w", container, pod.Name, err)
	}
	var text strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading the log of container %q of pod %q: %w", container, pod.Name, err)
		}
		text.WriteString(plainLog(string(data)))
	}
	return text.String(), nil
}

// plainLog removes time, stream and tag from the lines of a container's log, and joins what was cut because of its length.
func plainLog(log string) string {
	var text strings.Builder
	for line := range strings.Lines(log) {
		// 2026-01-02T15:04:05.000000000Z stdout F text
		fields := strings.SplitN(line, " ", 4)
		if len(fields) < 4 {
			continue
		}
		content := fields[3]
		if strings.HasPrefix(fields[2], "P") {
			content = strings.TrimSuffix(content, "\n")
		}
		text.WriteString(content)
	}
	return text.String()
}
