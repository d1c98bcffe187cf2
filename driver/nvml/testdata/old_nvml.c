// SPDX-License-Identifier: Apache-2.0
//
// A library in the place of libnvidia-ml.so.1 that exports no more than the functions
// which every supported driver has. Calling any other one through it ends the process,
// as it does with a driver that is older than the caller expects.
//
// It shows three GPUs: the first and the third are joined by two of their three links,
// the second is lost.

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, LOST = 15 };
enum { GPUS = 3, LINKS = 3 };

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

struct memory {
	unsigned long long total, unused, used;
};

struct gpu {
	int index;
};

static struct gpu gpus[GPUS] = {{0}, {1}, {2}};

static void fill(struct pci *pci, int index)
{
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x40 - 0x10 * index;
	pci->id = 0x20b010de;
	snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
	snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "another error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	snprintf(text, length, "450.80.02");
	return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
	*version = 11000;
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = GPUS;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu)
{
	*gpu = &gpus[index];
	return index == 1 ? LOST : SUCCESS;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned length)
{
	snprintf(text, length, "GPU-%d", gpu->index);
	return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
	fill(pci, gpu->index);
	return SUCCESS;
}

int nvmlDeviceGetMinorNumber(struct gpu *gpu, unsigned *minor)
{
	*minor = gpu->index;
	return SUCCESS;
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned length)
{
	snprintf(text, length, "A100-SXM4-40GB");
	return SUCCESS;
}

int nvmlDeviceGetBrand(struct gpu *gpu, int *brand)
{
	*brand = 2;
	return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor)
{
	*major = 8;
	*minor = 0;
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory)
{
	memory->total = 40ULL << 30;
	return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *gpu, unsigned *generation)
{
	*generation = 4;
	return SUCCESS;
}

int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, int *active)
{
	*active = link < 2;
	return link < LINKS ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *gpu, unsigned link, struct pci *pci)
{
	fill(pci, 2 - gpu->index);
	return SUCCESS;
}

int nvmlDeviceGetP2PStatus(struct gpu *a, struct gpu *b, int index, int *status)
{
	*status = index == 2 ? 0 : 5;
	return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(struct gpu *a, struct gpu *b, int *level)
{
	*level = 20;
	return SUCCESS;
}
