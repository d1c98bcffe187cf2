// SPDX-License-Identifier: Apache-2.0

// Command webhook is topodra-webhook: it turns classic GPU requests of new pods into claims, and sends pods with claims for
// our devices to our scheduler. See package webhook for what it does, docs/migration.md for what users see, and --help for
// what an administrator can set. Every flag can also be set by a variable: --secure-port by TOPODRA_SECURE_PORT.
package main
