#include "guard/real.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "guard/client.h"
#include "guard/elf.h"
#include "guard/state.h"
#include "lease/embed.h"

namespace kvram::guard {

void* g_real[cuda::kCount];
void* g_real_handle;

namespace {

CUresult missing() { return CUDA_ERROR_NOT_SUPPORTED; }

struct Wrapped {
  void* wrapper;
  const char* asked;
  int version;
  bool per_thread;
};
#define KV_ROW(symbol, asked, version, per_thread) \
  {reinterpret_cast<void*>(&::symbol), asked, version, per_thread != 0},
const Wrapped kWrappers[] = {KV_CUDA_WRAPPED(KV_ROW)};
#undef KV_ROW
#define KV_ROW(symbol) #symbol,
const char* const kNames[] = {KV_CUDA_RESOLVED(KV_ROW)};
#undef KV_ROW
static_assert(sizeof kWrappers / sizeof kWrappers[0] == cuda::kWrapped);

const uint64_t kKnown[] = {
#include "cuda_known.inc"
};

// Runs before any function of this library can be called: who links or opens it has it initialised first.
__attribute__((constructor)) void load() {
  g_real_handle = open_real(reinterpret_cast<const void*>(&missing), lease::kRealCudaName);
  for (unsigned i = 0; i < cuda::kCount; ++i) {
    g_real[i] = g_real_handle != nullptr ? dlsym(g_real_handle, kNames[i]) : nullptr;
    if (g_real[i] == nullptr) g_real[i] = reinterpret_cast<void*>(&missing);
  }
  make_state();
}

}  // namespace

Facts facts() {
  int version = 0;
  REAL(cuDriverGetVersion)(&version);
  return Facts{count_unknown(g_real_handle, "cu", kKnown, sizeof kKnown / sizeof kKnown[0]),
               static_cast<uint32_t>(version)};
}

// A driver may give several names one address, and may hand out addresses that it does not export: so the name that was
// asked for narrows the choice, and stands in for the pointer where that is unknown.
void* route(void* real, const char* name, int version, unsigned long long flags) {
  if (real == nullptr || real == reinterpret_cast<void*>(&missing)) return real;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Wrapped* by_pointer = nullptr;
  const Wrapped* by_name = nullptr;
  const Wrapped* by_both = nullptr;
  unsigned same = 0;
  for (unsigned i = 0; i < cuda::kCount; ++i) {
    const Wrapped* w = i < cuda::kWrapped ? &kWrappers[i] : nullptr;
    const bool named = w != nullptr && (strcmp(w->asked, name) == 0 || strcmp(kNames[i], name) == 0);
    const bool fits = named && w->version <= version && (!w->per_thread || per_thread);
    if (g_real[i] == real) {
      ++same;
      by_pointer = w;
      if (named && (by_both == nullptr || fits)) by_both = w;
    }
    if (!fits) continue;
    if (by_name == nullptr || w->per_thread > by_name->per_thread ||
        (w->per_thread == by_name->per_thread && w->version >= by_name->version)) {
      by_name = w;
    }
  }
  if (by_both != nullptr) return by_both->wrapper;
  if (same == 1) return by_pointer != nullptr ? by_pointer->wrapper : real;
  return same != 0 || by_name == nullptr ? real : by_name->wrapper;
}

}  // namespace kvram::guard
