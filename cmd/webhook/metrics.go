// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/topodra/topodra/webhook"
	"github.com/topodra/topodra/webhook/certs"
)

// counts are the webhook's own metrics, beside those of controller-runtime.
type counts struct {
	pods      *prometheus.CounterVec
	templates prometheus.Counter
}

// newCounts registers them.
func newCounts(keeper *certs.Keeper) *counts {
	c := &counts{
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "topodra_webhook_pods_total", Help: "Pods by what became of them: unchanged, converted, routed, rejected or failed.",
		}, []string{"outcome"}),
		templates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "topodra_webhook_templates_removed_total", Help: "ResourceClaimTemplates that were removed because nobody used them.",
		}),
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "topodra_webhook_certificate_expiry_seconds", Help: "When the certificate in use ends, in seconds since 1970; 0 if there is none.",
	}, func() float64 {
		if end := keeper.Expiry(); !end.IsZero() {
			return float64(end.Unix())
		}
		return 0
	})
	for _, outcome := range []webhook.Outcome{webhook.OutcomeUnchanged, webhook.OutcomeConverted, webhook.OutcomeRouted, webhook.OutcomeRejected, webhook.OutcomeFailed} {
		c.pods.WithLabelValues(string(outcome)) // so that all are there from the start
	}
	metrics.Registry.MustRegister(c.pods, c.templates, expiry)
	return c
}

// pod counts an answer.
func (c *counts) pod(outcome webhook.Outcome) { c.pods.WithLabelValues(string(outcome)).Inc() }

// removed counts a template.
func (c *counts) removed() { c.templates.Inc() }
