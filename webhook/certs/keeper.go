// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Keys of the Secret. Those of the serving certificate have the names that Kubernetes gives them.
const (
	keyCACert = "ca.crt"
	keyCAKey  = "ca.key"
	keyBundle = "ca-bundle.crt"
)

// maxTries bounds how often a write that lost a race is tried again.
const maxTries = 8

// Keeper keeps one Secret and the configurations that trust it.
type Keeper struct {
	Client kubernetes.Interface
	// Namespace and Secret are where the material is.
	Namespace, Secret string
	// Configurations are MutatingWebhookConfigurations all of whose webhooks are this program's.
	Configurations []string
	Terms          Terms
	// Period is the time between two looks.
	Period time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	served atomic.Pointer[tls.Certificate]
	// trusted is the last bundle, in case that the Secret gets lost. Only Reconcile uses it.
	trusted []byte
}

// Start looks after the material until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(k.Period)
	defer ticker.Stop()
	for {
		if err := k.Reconcile(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Keeping certificates, will try again", "period", k.Period)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection says that every replica does this.
func (k *Keeper) NeedLeaderElection() bool { return false }

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if served := k.served.Load(); served != nil {
		return served, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Ready returns an error while there is no certificate that is valid now.
func (k *Keeper) Ready() error {
	served, err := k.GetCertificate(nil)
	if err != nil {
		return err
	}
	if now := k.now(); now.After(served.Leaf.NotAfter) {
		return fmt.Errorf("the certificate has ended at %s", served.Leaf.NotAfter)
	}
	return nil
}

// Expiry returns when the certificate ends; zero if there is none.
func (k *Keeper) Expiry() time.Time {
	if served := k.served.Load(); served != nil {
		return served.Leaf.NotAfter
	}
	return time.Time{}
}

// Reconcile renews what is due, serves it, and tells the configurations.
func (k *Keeper) Reconcile(ctx context.Context) error {
	material, err := k.settle(ctx)
	if err != nil {
		return fmt.Errorf("keeping secret %q in namespace %q: %w", k.Secret, k.Namespace, err)
	}
	k.trusted = material.Bundle
	pair, err := tls.X509KeyPair(material.Cert, material.Key)
	if err != nil {
		return fmt.Errorf("reading the certificate: %w", err)
	}
	// Trust first: whoever asks after this gets what is trusted.
	var errs []error
	for _, name := range k.Configurations {
		if err := k.tell(ctx, name, material.Bundle); err != nil {
			errs = append(errs, fmt.Errorf("writing what is trusted into MutatingWebhookConfiguration %q: %w", name, err))
		}
	}
	k.served.Store(&pair)
	return errors.Join(errs...)
}

// settle returns what the Secret holds, after renewing what is due.
func (k *Keeper) settle(ctx context.Context) (*Material, error) {
	client := k.Client.CoreV1().Secrets(k.Namespace)
	var last error
	for range maxTries {
		secret, err := client.Get(ctx, k.Secret, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, err
		}
		if missing {
			secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Secret}, Type: corev1.SecretTypeTLS}
		}
		renewed, why, err := next(materialOf(secret), &k.Terms, k.trusted, k.now())
		if err != nil {
			return nil, err
		}
		if why == "" {
			return renewed, nil
		}
		renewed.into(secret)
		if missing {
			_, last = client.Create(ctx, secret, metav1.CreateOptions{})
		} else {
			_, last = client.Update(ctx, secret, metav1.UpdateOptions{})
		}
		switch {
		case last == nil:
			klog.FromContext(ctx).Info("Renewed certificates", "secret", klog.KObj(secret), "reason", why)
			return renewed, nil
		case !apierrors.IsAlreadyExists(last) && !apierrors.IsConflict(last):
			return nil, last
		}
	}
	return nil, last
}

// materialOf reads a Secret.
func materialOf(secret *corev1.Secret) *Material {
	d := secret.Data
	return &Material{
		CACert: d[keyCACert], CAKey: d[keyCAKey], Cert: d[corev1.TLSCertKey], Key: d[corev1.TLSPrivateKeyKey], Bundle: d[keyBundle],
	}
}

// into writes a Secret.
func (m *Material) into(secret *corev1.Secret) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[keyCACert], secret.Data[keyCAKey], secret.Data[keyBundle] = m.CACert, m.CAKey, m.Bundle
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = m.Cert, m.Key
}

// tell writes the bundle into every webhook of a configuration.
func (k *Keeper) tell(ctx context.Context, name string, bundle []byte) error {
	client := k.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	var last error
	for range maxTries {
		config, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		changed := false
		for i := range config.Webhooks {
			if target := &config.Webhooks[i].ClientConfig; !bytes.Equal(target.CABundle, bundle) {
				target.CABundle, changed = bundle, true
			}
		}
		if !changed {
			return nil
		}
		if _, last = client.Update(ctx, config, metav1.UpdateOptions{}); !apierrors.IsConflict(last) {
			return last
		}
	}
	return last
}

func (k *Keeper) now() time.Time {
	if k.Now != nil {
		return k.Now()
	}
	return time.Now()
}
