#include "driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

namespace chaos {

Driver cu;

namespace {
char g_self[64] = "";
std::atomic<unsigned long> g_refusals = 0;

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

void* look_up(void* library, GetProcAddress get, const char* base, const char* symbol) {
  void* found = nullptr;
  if (get != nullptr) {
    CUdriverProcAddressQueryResult how;
    // A name that cuda.h leaves as it is keeps its first form there; a newer one that the driver has may take other
    // arguments (cuCtxSynchronize).
    int version = strcmp(base, symbol) == 0 ? 12000 : CUDA_VERSION;
    if (get(base, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &how) != CUDA_SUCCESS) found = nullptr;
  } else {
    found = dlsym(library, symbol);
  }
  if (found == nullptr) fail("the driver lacks a call", symbol);
  return found;
}
}  // namespace

void name_self(unsigned long long seed, int process) {
  std::snprintf(g_self, sizeof g_self, "seed %llu process %d: ", seed, process);
}
unsigned long refusals() { return g_refusals; }

void fail(const char* what, const char* detail) {
  char line[256];
  int n = std::snprintf(line, sizeof line, "chaos[%d]: %s%s: %s\n", getpid(), g_self, what, detail);
  if (n > 0) (void)!write(2, line, std::min(static_cast<size_t>(n), sizeof line - 1));
  _exit(3);
}

bool granted(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return true;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    ++g_refusals;
    return false;
  }
  const char* name = nullptr;
  if (cu.cuGetErrorName(status, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  fail(call, name);
}
void must(CUresult status, const char* call) {
  if (!granted(status, call)) fail(call, "CUDA_ERROR_OUT_OF_MEMORY");
}

void load_driver(const char* library, bool by_proc_address) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail("dlopen", dlerror());
  GetProcAddress get = nullptr;
  if (by_proc_address) {
    get = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
    if (get == nullptr) fail("the driver lacks a call", "cuGetProcAddress_v2");
  }
#define CHAOS_TEXT2(name) #name
#define CHAOS_TEXT(name) CHAOS_TEXT2(name)
#define CHAOS_LOAD(name) cu.name = reinterpret_cast<decltype(cu.name)>(look_up(handle, get, #name, CHAOS_TEXT(name)));
  CHAOS_CALLS(CHAOS_LOAD)
#undef CHAOS_LOAD
}

}  // namespace chaos
