// SPDX-License-Identifier: Apache-2.0

// Command plain needs no library.
package main

import "os"

func main() { _, _ = os.Stdout.WriteString("plain\n") }
