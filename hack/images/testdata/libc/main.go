// SPDX-License-Identifier: Apache-2.0

// Command libc loads a library at run time, as the driver loads NVIDIA's.
package main

// #include <dlfcn.h>
// #include <stdlib.h>
// static double root(void *function) { return ((double (*)(double))function)(144); }
import "C"

import (
	"os"
	"unsafe"
)

func main() {
	name, function := C.CString("libm.so.6"), C.CString("sqrt")
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(function))
	library := C.dlopen(name, C.RTLD_NOW)
	if library == nil || C.root(C.dlsym(library, function)) != 12 {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("libc\n")
}
