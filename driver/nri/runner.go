// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
	"k8s.io/klog/v2"
)

// DefaultSocketPath is where runtimes offer NRI.
const DefaultSocketPath = api.DefaultSocketPath

// How the plugin is known to the runtime. The index orders plugins; ours comes
// late, so that it sees what others have done.
const (
	pluginName  = "topodra"
	pluginIndex = "90"
)

// Waits between attempts to connect.
const (
	firstWait = 100 * time.Millisecond
	longWait  = 15 * time.Second
)

// Times of the beacon.
const (
	// beaconPeriod is how often a connected plugin looks after its beacon.
	beaconPeriod = time.Second

	// drainTime is how long a plugin that is told to end stays connected after
	// its beacon is dark: containers whose specs the runtime has applied before
	// that are about to be asked for.
	drainTime = 250 * time.Millisecond
)

// UnhealthyAfter is how long the plugin may be without a connection to a
// runtime that offers NRI before Healthy says so. Meanwhile no container with a
// share starts, so somebody should look.
const UnhealthyAfter = 2 * time.Minute

// Runner keeps the plugin connected.
type Runner struct {
	plugin *Plugin
	socket string
	beacon *Beacon
	now    func() time.Time

	mu sync.Mutex
	// connected says whether the runtime knows the plugin; since when it does or
	// does not is changed.
	connected bool
	changed   time.Time
	lastErr   error
}

// NewRunner returns a runner for the socket of the runtime. It lights the beacon,
// unless that is nil, while it is connected.
func NewRunner(plugin *Plugin, socket string, beacon *Beacon) *Runner {
	runner := &Runner{plugin: plugin, socket: socket, beacon: beacon, now: time.Now}
	runner.changed = runner.now()
	return runner
}

// Offered says whether the runtime has NRI: the plugin is connected, or the
// socket is there. A runtime that restarts may be away for a moment; claims that
// are prepared then are delivered by the specs alone if that is possible, and
// refused otherwise.
func (r *Runner) Offered() bool {
	r.mu.Lock()
	connected := r.connected
	r.mu.Unlock()
	if connected {
		return true
	}
	info, err := os.Stat(r.socket)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// Healthy says that the plugin is connected, that the runtime has no NRI, or
// that it has not been disconnected for long.
func (r *Runner) Healthy() error {
	offered := r.Offered()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected || !offered || r.now().Sub(r.changed) < UnhealthyAfter {
		return nil
	}
	return fmt.Errorf("not connected to NRI at %q since %s, so no container with a share of a GPU can start: %w",
		r.socket, r.changed.Format(time.RFC3339), r.lastErr)
}

// Run connects, and connects again whenever the connection ends, until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	wait := firstWait
	for ctx.Err() == nil {
		started := r.now()
		err := r.connect(ctx)
		r.set(false, err)
		if ctx.Err() != nil {
			return
		}
		if r.now().Sub(started) > longWait {
			wait = firstWait // It had worked for a while.
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			logger.V(2).Info("The container runtime does not offer NRI", "socket", r.socket)
		default:
			logger.Error(err, "The connection to NRI has ended; connecting again", "socket", r.socket, "wait", wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, longWait)
	}
}

// connect registers the plugin and returns when the connection has ended.
func (r *Runner) connect(ctx context.Context) error {
	connected, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	current := &session{Plugin: r.plugin, runner: r}
	connection, err := stub.New(current, stub.WithPluginName(pluginName), stub.WithPluginIdx(pluginIndex),
		stub.WithSocketPath(r.socket), stub.WithDialer(r.dial), stub.WithLogger(adapter{logger: klog.FromContext(ctx)}),
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}))
	if err != nil {
		return err
	}
	var tending sync.WaitGroup
	tending.Go(func() { current.tend(ctx, connected, hangUp) })
	defer tending.Wait()
	err = connection.Run(connected)
	hangUp()
	if err == nil {
		err = errors.New("the runtime has closed the connection")
	}
	return err
}

// dial connects to the runtime and looks whether it can see the beacon.
func (r *Runner) dial(socket string) (net.Conn, error) {
	conn, err := net.Dial("unix", socket) //nolint:noctx // asked for by the stub, which has none; a local socket answers at once
	if err == nil {
		r.beacon.fit(sharesProcessIDs(conn))
	}
	return conn, err
}

// set notes whether the plugin is connected.
func (r *Runner) set(connected bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected != connected {
		r.changed = r.now()
	}
	r.connected, r.lastErr = connected, err
}

// session is the plugin for the length of one connection.
type session struct {
	*Plugin
	runner *Runner

	mu    sync.Mutex // taken before the runner's
	state sessionState
}

// sessionState goes one way.
type sessionState int

const (
	sessionNew sessionState = iota
	sessionConnected
	sessionEnding
)

// Synchronize marks the plugin as connected: from now on the runtime asks it
// about every container. It makes none before it has noted the answer.
func (s *session) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	updates, err := s.Plugin.Synchronize(ctx, pods, containers)
	if err != nil {
		return updates, err
	}
	s.mu.Lock()
	if s.state == sessionNew {
		s.state = sessionConnected
		s.runner.set(true, nil)
	}
	s.mu.Unlock()
	s.shine(ctx)
	return updates, nil
}

// tend keeps the beacon lit for the length of the connection, and darkens it
// before it hangs up because ctx has ended.
func (s *session) tend(ctx, connected context.Context, hangUp func()) {
	ticker := time.NewTicker(beaconPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-connected.Done():
			s.darken()
			return
		case <-ctx.Done():
			if s.darken() {
				select {
				case <-connected.Done():
				case <-time.After(drainTime):
				}
			}
			hangUp()
			return
		case <-ticker.C:
			s.shine(ctx)
		}
	}
}

// shine lights the beacon if the plugin is connected.
func (s *session) shine(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != sessionConnected {
		return
	}
	if err := s.runner.beacon.light(); err != nil {
		klog.FromContext(ctx).Error(err, "Containers with shares of GPUs cannot be made until this works; trying again")
	}
}

// darken darkens the beacon for the rest of the session and says whether it was
// lit.
func (s *session) darken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = sessionEnding
	return s.runner.beacon.douse()
}

// adapter writes the NRI library's messages as structured ones.
type adapter struct{ logger klog.Logger }

var _ nrilog.Logger = adapter{}

const nriMessage = "Message of the NRI library"

func (a adapter) Debugf(_ context.Context, format string, args ...any) {
	a.logger.V(6).Info(nriMessage, "message", fmt.Sprintf(format, args...))
}

func (a adapter) Infof(_ context.Context, format string, args ...any) {
	a.logger.V(4).Info(nriMessage, "message", fmt.Sprintf(format, args...))
}

func (a adapter) Warnf(_ context.Context, format string, args ...any) {
	a.logger.V(1).Info(nriMessage, "message", fmt.Sprintf(format, args...))
}

func (a adapter) Errorf(_ context.Context, format string, args ...any) {
	a.logger.Error(nil, nriMessage, "message", fmt.Sprintf(format, args...))
}
