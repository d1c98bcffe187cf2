// SPDX-License-Identifier: Apache-2.0
//
// A program that stands for one that uses CUDA: it is dynamically linked, so whatever is preloaded in its container is
// preloaded into it. It prints the report of the test double of libvgpu.so, or that there is none.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	const char *(*report)(void) = NULL;
	void *symbol = dlsym(RTLD_DEFAULT, "vgpu_double_report");
	memcpy(&report, &symbol, sizeof symbol); // ISO C has no cast from data to function pointers
	printf("%s\n", report != NULL && *report() != '\0' ? report() : "{\"preloaded\":false}");
	fflush(stdout);
	if (argc > 1 && strcmp(argv[1], "--stay") == 0) {
		pause();
	}
	return 0;
}
