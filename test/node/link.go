// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const loopback = "127.0.0.1"

// freePort returns a TCP port of loopback that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0")) //nolint:noctx // returns at once
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

// link is the node's connection to the API server: it forwards TCP connections, or, while it is cut, closes those that there
// are and every new one.
type link struct {
	target   string // host:port of the API server
	listener net.Listener
	work     sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{} // both ends of all connections
}

// startLink opens a link to the server of a URL.
func startLink(server string) (*link, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("linking the node to the API server: %w", err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0")) //nolint:noctx // returns at once
	if err != nil {
		return nil, fmt.Errorf("linking the node to the API server: %w", err)
	}
	k := &link{target: u.Host, listener: l, conns: map[net.Conn]struct{}{}}
	k.work.Go(k.accept)
	return k, nil
}

// url returns what clients on the node use as the API server. Its certificate is valid for every port of loopback.
func (k *link) url() string { return "https://" + k.listener.Addr().String() }

func (k *link) accept() {
	for {
		client, err := k.listener.Accept()
		if err != nil {
			return // closed
		}
		k.work.Go(func() { k.forward(client) })
	}
}

// forward carries one connection until either end closes it.
func (k *link) forward(client net.Conn) {
	defer k.drop(client)
	if !k.add(client) {
		return
	}
	server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", k.target)
	if err != nil {
		return // the client sees its connection close
	}
	defer k.drop(server)
	if !k.add(server) {
		return
	}
	var copies sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		copies.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // either end may go at any time: that is not this link's business
			k.drop(client)
			k.drop(server)
		})
	}
	copies.Wait()
}

// add enters a connection, unless the link is cut.
func (k *link) add(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.cut {
		k.conns[c] = struct{}{}
	}
	return !k.cut
}

// drop closes a connection and forgets it.
func (k *link) drop(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = c.Close() // closed twice is fine, and nothing that was written matters any more
	delete(k.conns, c)
}

// set cuts or restores the link.
func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	if cut {
		for c := range k.conns {
			_ = c.Close() // forward drops it
		}
	}
}

func (k *link) connected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.cut
}

func (k *link) close() error {
	err := k.listener.Close()
	k.set(true)
	k.work.Wait()
	if err != nil {
		return fmt.Errorf("closing the link to the API server: %w", err)
	}
	return nil
}

// Disconnect cuts the node's programs off the API server: open connections close, new ones fail. The launcher's own client
// is not affected.
func (n *Node) Disconnect() { n.link.set(true) }

// Connect ends what Disconnect began.
func (n *Node) Connect() { n.link.set(false) }

// writeKubeletKubeconfig gives the kubelet the identity that the API server knows kubelets by, through the admin's right to
// speak for others.
func (n *Node) writeKubeletKubeconfig() error {
	admin := n.cluster.AdminConfig()
	return n.writeKubeconfig(n.path("kubelet.kubeconfig"), &clientcmdapi.AuthInfo{
		Token: admin.BearerToken, Impersonate: "system:node:" + n.opts.Name, ImpersonateGroups: []string{"system:nodes"},
	})
}

// Kubeconfig writes a kubeconfig for a program on the node that runs under a service account, and returns its path. The
// token is bound to the Node object, as that of a pod on the node would be.
func (n *Node) Kubeconfig(ctx context.Context, namespace, serviceAccount string) (string, error) {
	object, err := n.client.CoreV1().Nodes().Get(ctx, n.opts.Name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("getting node %q: %w", n.opts.Name, err)
	}
	day := int64(24 * 60 * 60)
	answer, err := n.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day, BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Node", Name: object.Name, UID: object.UID,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %q in namespace %q: %w", serviceAccount, namespace, err)
	}
	path := n.path(namespace + "-" + serviceAccount + ".kubeconfig")
	return path, n.writeKubeconfig(path, &clientcmdapi.AuthInfo{Token: answer.Status.Token})
}

func (n *Node) writeKubeconfig(path string, user *clientcmdapi.AuthInfo) error {
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"topodra": {
			Server: n.link.url(), CertificateAuthorityData: n.cluster.AdminConfig().CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": user},
		Contexts:       map[string]*clientcmdapi.Context{"topodra": {Cluster: "topodra", AuthInfo: "user"}},
		CurrentContext: "topodra",
	}
	if err := errors.Join(clientcmd.WriteToFile(config, path), os.Chmod(path, 0o600)); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return nil
}
