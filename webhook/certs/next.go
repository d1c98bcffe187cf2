// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Material is what the Secret holds, all of it PEM.
type Material struct {
	// CACert and CAKey are the authority that signs from now on.
	CACert, CAKey []byte
	// Cert and Key are served.
	Cert, Key []byte
	// Bundle is every authority that is to be trusted.
	Bundle []byte
}

// Terms are how long things last and what for.
type Terms struct {
	// Hosts are DNS names and IP addresses of the webhook; the first is also the subject.
	Hosts []string
	// Lifetime of a serving certificate.
	Lifetime time.Duration
}

// The other times, as parts of the lifetime of a serving certificate.
func (t *Terms) caLifetime() time.Duration   { return 10 * t.Lifetime }
func (t *Terms) renewCA() time.Duration      { return 2 * t.Lifetime } // so that a certificate still gets its whole life
func (t *Terms) renewServing() time.Duration { return t.Lifetime / 3 }
func (t *Terms) settle() time.Duration       { return min(t.Lifetime/10, 10*time.Minute) } // before a new authority signs
func (t *Terms) backdate() time.Duration     { return min(t.Lifetime/10, 5*time.Minute) }  // for clocks that are slow

// authority is a parsed CA.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// next returns what the Secret should hold, and why if that is something else than before. trusted are further authorities
// that somebody may still serve with.
func next(old *Material, terms *Terms, trusted []byte, now time.Time) (*Material, string, error) {
	renewed, why := *old, ""
	ca, err := parseAuthority(old)
	var reason string
	switch {
	case err != nil:
		reason = "the authority is unusable: " + err.Error()
	case now.After(ca.cert.NotAfter.Add(-terms.renewCA())):
		reason = "the authority ends soon"
	case now.Before(ca.cert.NotBefore):
		reason = "the authority is not valid yet"
	}
	if reason != "" {
		if ca, err = renewed.makeCA(terms, now); err != nil {
			return nil, "", err
		}
		why = reason
	}
	renewed.Bundle = bundle(now, renewed.CACert, old.Bundle, old.CACert, trusted)
	if !bytes.Equal(renewed.Bundle, old.Bundle) && why == "" {
		why = "what is trusted has changed"
	}
	if reason := checkServing(&renewed, terms, ca, now); reason != "" {
		if err := renewed.makeServing(terms, ca, now); err != nil {
			return nil, "", err
		}
		why = reason
	}
	return &renewed, why, nil
}

// parseAuthority reads the CA.
func parseAuthority(m *Material) (*authority, error) {
	pair, err := tls.X509KeyPair(m.CACert, m.CAKey)
	if err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("reading it: it is no authority")
	}
	return &authority{pair.Leaf, key}, nil
}

// checkServing returns why a new serving certificate is needed, or nothing.
func checkServing(m *Material, terms *Terms, ca *authority, now time.Time) string {
	pair, err := tls.X509KeyPair(m.Cert, m.Key)
	if err != nil {
		return "the certificate is unusable: " + err.Error()
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.Bundle)
	for _, host := range terms.Hosts {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: now}); err != nil {
			return fmt.Sprintf("the certificate is not good for %q: %v", host, err)
		}
	}
	settled := !now.Before(ca.cert.NotBefore.Add(terms.backdate() + terms.settle()))
	switch {
	case now.After(pair.Leaf.NotAfter.Add(-terms.renewServing())):
		return "the certificate ends soon"
	case settled && pair.Leaf.CheckSignatureFrom(ca.cert) != nil:
		return "the authority has changed"
	}
	return ""
}

// bundle joins the authorities that have not ended, each once, in the order given.
func bundle(now time.Time, sources ...[]byte) []byte {
	var seen []*x509.Certificate
	for _, source := range sources {
		certs, err := cert.ParseCertsPEM(source)
		if err != nil {
			continue // nothing in it
		}
		for _, c := range certs {
			if c.IsCA && now.Before(c.NotAfter) && !slices.ContainsFunc(seen, c.Equal) {
				seen = append(seen, c)
			}
		}
	}
	encoded, err := cert.EncodeCertificates(seen...)
	if err != nil {
		return nil // certificates that were parsed can be written
	}
	return encoded
}

// makeCA makes a new authority.
func (m *Material) makeCA(terms *Terms, now time.Time) (*authority, error) {
	key, encoded, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: terms.Hosts[0] + "-ca"},
		NotBefore: now.Add(-terms.backdate()), NotAfter: now.Add(terms.caLifetime()),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	ca, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	m.CAKey = encoded
	if m.CACert, err = cert.EncodeCertificates(ca); err != nil {
		return nil, fmt.Errorf("encoding an authority: %w", err)
	}
	return &authority{ca, key}, nil
}

// makeServing makes a new serving certificate.
func (m *Material) makeServing(terms *Terms, ca *authority, now time.Time) error {
	key, encoded, err := newKey()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: terms.Hosts[0]},
		NotBefore: now.Add(-terms.backdate()), NotAfter: now.Add(terms.Lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	for _, host := range terms.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	leaf, err := sign(template, ca.cert, key, ca.key)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	m.Key = encoded
	if m.Cert, err = cert.EncodeCertificates(leaf); err != nil {
		return fmt.Errorf("encoding a certificate: %w", err)
	}
	return nil
}

// newKey makes a private key, and its PEM form.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding a key: %w", err)
	}
	return key, encoded, nil
}

// sign completes a template under a parent.
func sign(template, parent *x509.Certificate, key, parentKey crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return x509.ParseCertificate(der)
}
