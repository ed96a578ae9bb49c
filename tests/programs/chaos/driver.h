// The driver as this program sees it: every call that chaos makes, found at run time in libcuda.so.1 by its soname, by
// symbol or through cuGetProcAddress.
#pragma once
#include <cuda.h>

namespace chaos {

#define CHAOS_CALLS(X)              \
  X(cuInit)                         \
  X(cuDeviceGet)                    \
  X(cuDeviceGetCount)               \
  X(cuDeviceTotalMem)               \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuDeviceGetDefaultMemPool)      \
  X(cuDeviceGraphMemTrim)           \
  X(cuCtxCreate)                    \
  X(cuCtxDestroy)                   \
  X(cuCtxSetCurrent)                \
  X(cuCtxSynchronize)               \
  X(cuCtxSetLimit)                  \
  X(cuMemGetInfo)                   \
  X(cuMemAlloc)                     \
  X(cuMemAllocPitch)                \
  X(cuMemAllocManaged)              \
  X(cuMemFree)                      \
  X(cuMemcpyHtoD)                   \
  X(cuMemcpyDtoH)                   \
  X(cuMemHostAlloc)                 \
  X(cuMemFreeHost)                  \
  X(cuArrayCreate)                  \
  X(cuArray3DCreate)                \
  X(cuArrayDestroy)                 \
  X(cuMipmappedArrayCreate)         \
  X(cuMipmappedArrayDestroy)        \
  X(cuMemAllocAsync)                \
  X(cuMemAllocFromPoolAsync)        \
  X(cuMemFreeAsync)                 \
  X(cuMemPoolCreate)                \
  X(cuMemPoolDestroy)               \
  X(cuMemPoolSetAttribute)          \
  X(cuMemPoolTrimTo)                \
  X(cuMemCreate)                    \
  X(cuMemRelease)                   \
  X(cuMemAddressReserve)            \
  X(cuMemAddressFree)               \
  X(cuMemMap)                       \
  X(cuMemUnmap)                     \
  X(cuMemSetAccess)                 \
  X(cuMemRetainAllocationHandle)    \
  X(cuMemExportToShareableHandle)   \
  X(cuMemImportFromShareableHandle) \
  X(cuIpcGetMemHandle)              \
  X(cuIpcOpenMemHandle)             \
  X(cuIpcCloseMemHandle)            \
  X(cuModuleLoadData)               \
  X(cuModuleUnload)                 \
  X(cuStreamCreate)                 \
  X(cuStreamDestroy)                \
  X(cuStreamSynchronize)            \
  X(cuStreamBeginCapture)           \
  X(cuStreamEndCapture)             \
  X(cuGraphCreate)                  \
  X(cuGraphDestroy)                 \
  X(cuGraphAddMemAllocNode)         \
  X(cuGraphAddMemFreeNode)          \
  X(cuGraphInstantiate)             \
  X(cuGraphLaunch)                  \
  X(cuGraphExecDestroy)             \
  X(cuGetErrorName)

struct Driver {
#define CHAOS_FIELD(name) decltype(&::name) name = nullptr;
  CHAOS_CALLS(CHAOS_FIELD)
#undef CHAOS_FIELD
};
extern Driver cu;

// Opens `library` and fills `cu`; ends the program with a sentence (status 3) when a call is missing. Call it before
// the first thread.
void load_driver(const char* library, bool by_proc_address);

// CUDA_SUCCESS: true. CUDA_ERROR_OUT_OF_MEMORY: false, and counted. Anything else ends the program with status 3.
bool granted(CUresult status, const char* call);
// Anything but success ends the program with status 3.
void must(CUresult status, const char* call);
[[noreturn]] void fail(const char* what, const char* detail);

// What this process is, for the messages of the two above: "seed 7 process 2".
void name_self(unsigned long long seed, int process);
unsigned long refusals();

}  // namespace chaos
