// SPDX-License-Identifier: Apache-2.0
//
// A test double of libvgpu.so, HAMi-core's library. It limits nothing. Preloaded into a process, it reads the same
// variables as the library, maps the region file as the library would, enters the limits and itself there, and says what it
// saw: in a line of JSON that is appended to <region>.double, and through vgpu_double_report().
//
// The region has the layout of HAMi-core 1.2 on x86-64 (all numbers little endian):
//   0 i32 magic, 4 u32 major, 8 u32 minor, 16 u64 owner's pid, 56 u64 number of devices, 64 char[16][96] UUIDs,
//   1600 u64[16] memory limits in bytes, 1728 u64[16] limits of compute in percent,
//   1856 slots of 1960 bytes, 1024 of them (0 i32 pid, 8 used[16] of 64 bytes with the total at 32, 1928 i32 status),
//   2008896 i32 number of slots in use, 2008900 i32 utilization switch, 2008904 i32 recent kernel, 2008908 i32 priority.

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	max_devices = 16,
	magic = 19920718,
	region_size = 2008952,
	off_owner = 16,
	off_device_count = 56,
	off_memory = 1600,
	off_cores = 1728,
	off_slots = 1856,
	slot_size = 1960,
	slot_count = 1024,
	off_slot_used_total = 8 + 32,
	off_slot_status = 1928,
	off_slots_used = 2008896,
	off_switch = 2008900,
	off_recent_kernel = 2008904,
	off_priority = 2008908,
};

static char report[4096];
static size_t report_length;

static void say(const char *format, ...) {
	va_list args;
	va_start(args, format);
	int n = vsnprintf(report + report_length, sizeof report - report_length, format, args);
	va_end(args);
	if (n > 0 && (size_t)n < sizeof report - report_length) {
		report_length += (size_t)n;
	}
}

// say_string says a JSON string, or null. Characters that JSON would want escaped are replaced: none are expected.
static void say_string(const char *value) {
	if (value == NULL) {
		say("null");
		return;
	}
	say("\"");
	for (; *value != '\0'; value++) {
		say("%c", *value >= ' ' && *value != '"' && *value != '\\' && *value != 127 ? *value : '?');
	}
	say("\"");
}

// numbered returns PREFIX_<i>.
static const char *numbered(const char *prefix, int i) {
	char name[64];
	snprintf(name, sizeof name, "%s_%d", prefix, i);
	return getenv(name);
}

// say_numbered says an object of the variables PREFIX_<i> that are set.
static void say_numbered(const char *prefix) {
	const char *comma = "";
	say("{");
	for (int i = 0; i < max_devices; i++) {
		const char *value = numbered(prefix, i);
		if (value != NULL) {
			say("%s\"%d\":", comma, i);
			say_string(value);
			comma = ",";
		}
	}
	say("}");
}

// quantity reads a number with a suffix of g, m or k, as the library does; 0 is no limit.
static uint64_t quantity(const char *text) {
	char *end;
	if (text == NULL || *text == '\0') {
		return 0;
	}
	uint64_t value = strtoul(text, &end, 0);
	switch (*end) {
	case 'g': case 'G': return value << 30;
	case 'm': case 'M': return value << 20;
	case 'k': case 'K': return value << 10;
	default: return value;
	}
}

static void put32(char *region, size_t offset, int32_t value) { memcpy(region + offset, &value, sizeof value); }
static void put64(char *region, size_t offset, uint64_t value) { memcpy(region + offset, &value, sizeof value); }

static int32_t get32(const char *region, size_t offset) {
	int32_t value;
	memcpy(&value, region + offset, sizeof value);
	return value;
}

// create fills in a new region: the first process of a container seeds the limits for all.
static void create(char *region) {
	uint64_t count = 0;
	for (int i = 0; i < max_devices; i++) {
		const char *memory = numbered("CUDA_DEVICE_MEMORY_LIMIT", i);
		const char *cores = numbered("CUDA_DEVICE_SM_LIMIT", i);
		if (memory != NULL || cores != NULL) {
			count = (uint64_t)i + 1;
		}
		put64(region, off_memory + 8 * (size_t)i, quantity(memory));
		put64(region, off_cores + 8 * (size_t)i, cores == NULL ? 100 : quantity(cores));
	}
	put32(region, 4, 1);
	put32(region, 8, 2);
	put64(region, off_owner, (uint64_t)getpid());
	put64(region, off_device_count, count);
	put32(region, off_switch, 1);
	put32(region, off_recent_kernel, 2);
	put32(region, off_priority, 1);
	put32(region, 0, magic); // last: whoever sees it sees the rest
}

// enter takes a slot, which stays when the process ends, as after a kill.
static void enter(char *region) {
	int32_t used = get32(region, off_slots_used);
	if (used < 0 || used >= slot_count) {
		return;
	}
	size_t slot = off_slots + (size_t)used * slot_size;
	put32(region, slot, getpid());
	put64(region, slot + off_slot_used_total, 1 << 20); // one MiB on GPU 0, so that there is something to see
	put32(region, slot + off_slot_status, 1);
	put32(region, off_slots_used, used + 1);
}

// use maps the region and returns 0, or says what is wrong.
static int use(const char *path, const char **step) {
	*step = "open";
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0) {
		return errno;
	}
	*step = "lock";
	int error = 0;
	struct stat info;
	if (flock(fd, LOCK_EX) != 0 || fstat(fd, &info) != 0) {
		error = errno;
	} else if (info.st_size < region_size && (*step = "allocate", error = posix_fallocate(fd, 0, region_size + 1)) != 0) {
		// Said here, and not by a signal when a page cannot be written later.
	} else {
		*step = "map";
		char *region = mmap(NULL, region_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (region == MAP_FAILED) {
			error = errno;
		} else {
			if (get32(region, 0) != magic) {
				create(region);
			}
			enter(region);
			munmap(region, region_size);
		}
	}
	close(fd);
	return error;
}

// append adds the report to the file beside the region. Where that fails, the report says so to whoever asks for it.
static int append(const char *region) {
	char path[1024];
	snprintf(path, sizeof path, "%s.double", region);
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0) {
		return errno;
	}
	int error = write(fd, report, report_length) == (ssize_t)report_length && write(fd, "\n", 1) == 1 ? 0 : errno;
	close(fd);
	return error;
}

__attribute__((constructor)) static void preloaded(void) {
	const char *region = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	if (region == NULL) {
		return; // nothing is limited here: a probe, or a mistake that vgpu_double_report() shows
	}
	const char *step = "";
	int error = use(region, &step);
	say("{\"preloaded\":true,\"pid\":%d,\"order\":", (int)getpid());
	say_string(getenv("CUDA_DEVICE_ORDER"));
	say(",\"visible\":");
	say_string(getenv("CUDA_VISIBLE_DEVICES"));
	say(",\"memory\":");
	say_numbered("CUDA_DEVICE_MEMORY_LIMIT");
	say(",\"cores\":");
	say_numbered("CUDA_DEVICE_SM_LIMIT");
	say(",\"region\":");
	say_string(region);
	say(",\"regionWritable\":%s,\"regionError\":\"%s%s%s\"", error == 0 ? "true" : "false",
		error == 0 ? "" : step, error == 0 ? "" : ": ", error == 0 ? "" : strerror(error));
	say("}");
	append(region);
}

// vgpu_double_report returns the line of JSON; it is empty if there was no region to use.
const char *vgpu_double_report(void) { return report; }
