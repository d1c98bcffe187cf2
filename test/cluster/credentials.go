// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/csv"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Users of the cluster. Beside them there are those of Options.Users, and every service account that exists, by its full
// name ("system:serviceaccount:NAMESPACE:NAME").
const (
	// UserAdmin is in system:masters: it may do everything.
	UserAdmin = "topodra-admin"
	// UserControllerManager is the controller manager's.
	UserControllerManager = "system:kube-controller-manager"
	// UserStockScheduler is the stock scheduler's.
	UserStockScheduler = "system:kube-scheduler"
	// UserTopoDRAScheduler is the service account of TopoDRA's scheduler.
	UserTopoDRAScheduler = serviceAccountPrefix + Namespace + ":topodra-scheduler"
	// UserTopoDRADriver is the service account of TopoDRA's drivers. Their own tokens are also bound to a node.
	UserTopoDRADriver = serviceAccountPrefix + Namespace + ":topodra-driver"
	// Namespace is where TopoDRA's service accounts are.
	Namespace = "topodra-system"

	serviceAccountPrefix = "system:serviceaccount:"
	// tokenSeconds is the life of a service account token: a day, longer than any run.
	tokenSeconds = 24 * 60 * 60
)

// writeCredentials writes the table of static tokens and the key pair for service account tokens.
func (c *Cluster) writeCredentials() error {
	groups := map[string][]string{
		UserAdmin:             {"system:masters"},
		UserControllerManager: nil,
		UserStockScheduler:    nil,
	}
	for user, userGroups := range c.opts.Users {
		if _, taken := groups[user]; taken {
			return fmt.Errorf("adding user %q: the name is taken by the package", user)
		}
		groups[user] = userGroups
	}
	var table strings.Builder
	w := csv.NewWriter(&table)
	for i, user := range slices.Sorted(maps.Keys(groups)) {
		c.tokens[user] = rand.Text()
		record := []string{c.tokens[user], user, fmt.Sprintf("uid-%d", i)}
		if g := groups[user]; len(g) > 0 {
			record = append(record, strings.Join(g, ","))
		}
		if err := w.Write(record); err != nil {
			return fmt.Errorf("writing the token of user %q: %w", user, err)
		}
	}
	w.Flush()
	if err := errors.Join(w.Error(), os.WriteFile(c.tokenFile(), []byte(table.String()), 0o600)); err != nil {
		return fmt.Errorf("writing the token table: %w", err)
	}
	return c.writeServiceAccountKeys()
}

// writeServiceAccountKeys writes the private key that signs service account tokens and the public one that checks them.
func (c *Cluster) writeServiceAccountKeys() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generating the service account key: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	err = errors.Join(
		os.WriteFile(c.privateKeyFile(), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(c.publicKeyFile(), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600),
	)
	if err != nil {
		return fmt.Errorf("writing the service account key: %w", err)
	}
	return nil
}

func (c *Cluster) tokenFile() string      { return c.path("certs", "tokens.csv") }
func (c *Cluster) privateKeyFile() string { return c.path("certs", "service-account.key") }
func (c *Cluster) publicKeyFile() string  { return c.path("certs", "service-account.pub") }

// ConfigFor returns a client configuration of a user, see the User constants, without a rate limit.
func (c *Cluster) ConfigFor(ctx context.Context, user string) (*rest.Config, error) {
	token, err := c.tokenFor(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("getting the credentials of %q: %w", user, err)
	}
	config := c.AdminConfig()
	config.BearerToken = token
	return config, nil
}

// Kubeconfig writes a kubeconfig file of a user, see the User constants, and returns its absolute path. The file is self-contained.
func (c *Cluster) Kubeconfig(ctx context.Context, user string) (string, error) {
	token, err := c.tokenFor(ctx, user)
	if err != nil {
		return "", fmt.Errorf("writing a kubeconfig for %q: %w", user, err)
	}
	return c.writeKubeconfig(user, user, token)
}

// writeKubeconfig writes a kubeconfig file under a name that is made safe for file systems.
func (c *Cluster) writeKubeconfig(name, user, token string) (string, error) {
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"topodra": {
			Server: c.admin.Host, CertificateAuthorityData: c.admin.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"topodra": {Cluster: "topodra", AuthInfo: user}},
		CurrentContext: "topodra",
	}
	path := c.path("kubeconfigs", strings.NewReplacer(":", "-", string(filepath.Separator), "-").Replace(name)+".kubeconfig")
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return "", fmt.Errorf("writing a kubeconfig for %q: %w", user, err)
	}
	return path, nil
}

// tokenFor returns the static token of a user, or a new one of a service account.
func (c *Cluster) tokenFor(ctx context.Context, user string) (string, error) {
	if token, ok := c.tokens[user]; ok {
		return token, nil
	}
	if strings.HasPrefix(user, serviceAccountPrefix) {
		return c.serviceAccountToken(ctx, user, nil)
	}
	return "", fmt.Errorf("no user %q: there are %q, service accounts (%sNAMESPACE:NAME) and those of Options.Users",
		user, slices.Sorted(maps.Keys(c.tokens)), serviceAccountPrefix)
}

// serviceAccountToken asks the API server for a token of a service account. bound may name the object whose end ends the token.
func (c *Cluster) serviceAccountToken(ctx context.Context, user string, bound *authenticationv1.BoundObjectReference) (string, error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(user, serviceAccountPrefix), ":")
	if !ok {
		return "", fmt.Errorf("user %q is not of the form %sNAMESPACE:NAME", user, serviceAccountPrefix)
	}
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: bound},
	}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %q in namespace %q: %w", name, namespace, err)
	}
	return answer.Status.Token, nil
}
