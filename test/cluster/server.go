// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	loopback = "127.0.0.1"
	// portAttempts bounds how often a server is started anew because its port was taken.
	portAttempts = 10
	// readyTimeout is generous: the machine may be compiling something else on few cores.
	readyTimeout = 3 * time.Minute
	probeTimeout = 5 * time.Second
)

// serverSpec describes a process that serves HTTPS on a port of loopback.
type serverSpec struct {
	stage  stage
	name   string
	binary string
	// args returns the arguments for one attempt.
	args func(port int) []string
	// certFile is where the process writes the certificate that it serves with, in a directory of its own.
	certFile string
	// path answers 200 when the process is ready.
	path string
	// token authenticates the question, if the server wants to know who asks.
	token string
	grace time.Duration
}

// freePort returns a TCP port of loopback that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0")) // returns at once
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("looking for a free port: unexpected address %q", l.Addr())
	}
	return addr.Port, nil
}

// startServer starts a server on a free port and waits until it is ready. When another process took the port in between,
// it tries again with a new one.
func (c *Cluster) startServer(ctx context.Context, spec serverSpec) (*Process, error) {
	var last error
	for range portAttempts {
		port, err := c.pickPort()
		if err != nil {
			return nil, err
		}
		// A certificate of an earlier process must not speak for this one. Its directory holds nothing else but its key.
		if err := os.RemoveAll(filepath.Dir(spec.certFile)); err != nil {
			return nil, fmt.Errorf("removing an old certificate: %w", err)
		}
		p, err := c.start(spec.stage, spec.name, spec.binary, spec.args(port), spec.grace)
		if err != nil {
			return nil, err
		}
		p.Addr = net.JoinHostPort(loopback, strconv.Itoa(port))
		p.certFile, p.token = spec.certFile, spec.token
		err = p.waitReady(ctx, readyTimeout, func(ctx context.Context) error {
			_, err := p.get(ctx, spec.path)
			return err
		})
		if err == nil {
			c.watch(p)
			return p, nil
		}
		taken := p.Err() != nil && p.portTaken()
		last = errors.Join(err, p.Stop())
		if !taken {
			break
		}
	}
	return nil, fmt.Errorf("starting %q: %w", spec.name, last)
}

// get fetches one path from the process's server. It accepts only the certificate that the process wrote, and only status 200.
func (p *Process) get(ctx context.Context, path string) ([]byte, error) {
	pem, err := os.ReadFile(p.certFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %q: %w", p.Name, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the certificate of %q: no certificate in %q yet", p.Name, p.certFile)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: probeTimeout}
	url := "https://" + p.Addr + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("building a request to %q: %w", url, err)
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking %q: %w", p.Name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %q to %s: %w", p.Name, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %q: %s answered %s: %.500s", p.Name, path, resp.Status, body)
	}
	return body, nil
}

// Metrics returns what the process serves under /metrics, in Prometheus text format. Schedulers have it.
func (p *Process) Metrics(ctx context.Context) ([]byte, error) {
	if p.Addr == "" {
		return nil, fmt.Errorf("reading the metrics of %q: it serves none", p.Name)
	}
	return p.get(ctx, "/metrics")
}
