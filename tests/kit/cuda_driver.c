/* A libcuda.so.1 for machines without a GPU: its devices' memory is a mapping, but the addresses it gives out are moved
 * to where nothing is mapped. Whoever touches them with the CPU dies, as with a real GPU; the calls move them back. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHIFT (UINT64_C(1) << 56)
#define MOST (64 << 20)
enum { OK = 0, INVALID_VALUE = 1, NO_CONTEXT = 201, OUT_OF_MEMORY = 2 };

static char *device_memory;
static int device_fd;
static size_t used;
static int num_pinned;
static __thread void *stack[8];
static __thread int depth;

static int check(uint64_t address, size_t size) {
    uint64_t start = (uint64_t)device_memory + SHIFT;
    if (!depth) return NO_CONTEXT;
    return address < start || address + size > start + MOST ? INVALID_VALUE : OK;
}

int cuInit(unsigned flags) {
    if (!device_memory) {
        device_fd = memfd_create("gpu", 0);
        if (ftruncate(device_fd, MOST)) return OUT_OF_MEMORY;
        device_memory = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, device_fd, 0);
    }
    return flags ? INVALID_VALUE : OK;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == NO_CONTEXT ? "invalid device context" : "invalid argument";
    return OK;
}
int cuDeviceGet(int *handle, int ordinal) { *handle = ordinal; return ordinal ? 101 : OK; }
int cuDeviceGetPCIBusId(char *text, int size, int handle) {
    snprintf(text, size, "0000:1B:%02d.0", handle);
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int handle) { *context = (void *)0x1000 + handle; return OK; }
int cuCtxPushCurrent_v2(void *context) {
    if (depth == 8) return INVALID_VALUE;
    stack[depth++] = context;
    return OK;
}
int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return NO_CONTEXT;
    *context = stack[--depth];
    return OK;
}
int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    if (!depth) return NO_CONTEXT;
    if (flags != 1 || !(*address = malloc(size))) return INVALID_VALUE;
    num_pinned++;
    return OK;
}
int cuMemFreeHost(void *address) {
    num_pinned--;
    free(address);
    return depth ? OK : NO_CONTEXT;
}
int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    int error = check(source, size);
    if (!error) memcpy(target, (void *)(source - SHIFT), size);
    return error;
}
int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
    int error = check(target, size);
    if (!error) memcpy((void *)(target - SHIFT), source, size);
    return error;
}
int cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    return attribute != 6 || *(const int *)value != 1 ? INVALID_VALUE : check(address, 1);
}
int cuMemGetHandleForAddressRange(int *handle, uint64_t address, size_t size, int type, unsigned long long flags) {
    int error = check(address, size);
    if (error || type != 1 || flags || address % 4096 || size % 4096) return error ? error : INVALID_VALUE;
    return (*handle = dup(device_fd)) < 0 ? OUT_OF_MEMORY : OK;
}

/* For tests: what torch does; and from the beginning again. */
uint64_t test_allocate(size_t size) {
    uint64_t address = (uint64_t)device_memory + SHIFT + used;
    used += (size + 511) / 512 * 512;
    return used > MOST ? 0 : address;
}
void test_reset(void) { used = 0; }
int test_num_pinned(void) { return num_pinned; }
