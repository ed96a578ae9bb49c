/* A driver whose calls do nothing, so that what the guard adds to a call can be seen to the nanosecond. It keeps just
 * enough state to be asked sensible questions: devices, a current context per thread, addresses that never repeat.
 * Memory is not memory: nothing may touch it.
 *
 * KV_NULL_UUIDS  the devices' UUIDs as NVML writes them, comma-separated (default: one device, all zero)
 * KV_NULL_BYTES  bytes of each device (default 80 GiB) */
#include "null.h"

#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { kMaxDevices = 16, kVersion = 13050 };

static int device_count = 1;
static CUuuid uuids[kMaxDevices];
static size_t device_bytes = 80UL << 30;
static CUdeviceptr next_address = 0x700000000000;
static uintptr_t next_handle = 0x1000;
static __thread CUcontext current; /* of this thread: (CUcontext)(device + 1) << 8 */

static int hex(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

static void read_uuids(const char* text) {
  device_count = 0;
  while (*text != 0 && device_count < kMaxDevices) {
    if (strncmp(text, "GPU-", 4) == 0) text += 4;
    int digits = 0;
    for (; *text != 0 && *text != ','; ++text) {
      if (*text == '-' || digits == 32) continue;
      char* byte = &uuids[device_count].bytes[digits / 2];
      *byte = (char)(digits % 2 ? *byte | hex(*text) : hex(*text) << 4);
      ++digits;
    }
    if (*text == ',') ++text;
    ++device_count;
  }
}

__attribute__((constructor)) static void start(void) {
  const char* list = getenv("KV_NULL_UUIDS");
  const char* bytes = getenv("KV_NULL_BYTES");
  if (list != NULL && *list != 0) read_uuids(list);
  if (bytes != NULL && *bytes != 0) device_bytes = strtoull(bytes, NULL, 10);
}

static CUcontext context_of(CUdevice device) { return (CUcontext)((uintptr_t)(device + 1) << 8); }
static CUdevice device_of(CUcontext context) { return (CUdevice)((uintptr_t)context >> 8) - 1; }
static void* new_handle(void) { return (void*)__atomic_add_fetch(&next_handle, 16, __ATOMIC_RELAXED); }

EXPORT CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                              : "CUDA_ERROR";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = device_count;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  *uuid = uuids[device];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  (void)device;
  if (length > 0) {
    strncpy(name, "null device", (size_t)length - 1);
    name[length - 1] = 0;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  (void)device;
  *bytes = device_bytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  (void)attribute;
  (void)device;
  *value = 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return device < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  *device = device_of(current);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  *device = device_of(context != NULL ? context : current);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  *id = (unsigned long long)(uintptr_t)(context != NULL ? context : current);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  *address = __atomic_fetch_add(&next_address, (bytes + 511) / 512 * 512, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  (void)address;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  *free_bytes = device_bytes;
  *total = device_bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  (void)flags;
  *stream = new_handle();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  (void)stream;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  (void)stream;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  (void)image;
  *module = new_handle();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
  (void)module;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  (void)module;
  (void)name;
  *function = new_handle();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void** arguments, void** extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments,
      (void)extra;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** arguments, void** extra) {
  (void)config, (void)f, (void)arguments, (void)extra;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  (void)exec, (void)stream;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  (void)id;
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

static int by_name(const void* key, const void* entry) {
  return strcmp(key, ((const struct kv_null_entry*)entry)->name);
}

EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* found) {
  (void)version;
  const struct kv_null_entry* e = bsearch(symbol, kv_null_entries, kv_null_entry_count, sizeof *e, by_name);
  *pfn = e == NULL ? NULL : (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ? e->per_thread : e->plain;
  if (found != NULL) *found = e == NULL ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return e == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
EXPORT CUresult cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
