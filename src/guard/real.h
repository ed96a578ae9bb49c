// The driver's own functions, resolved when the library is loaded. REAL(cuMemAlloc_v2) is callable with the header's
// own type; a function that this driver lacks answers "not supported".
#pragma once
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "cuda_names.h"

namespace kvram::guard {

extern void* g_real[cuda::kCount];
extern void* g_real_handle;

// The pointer that a program should get instead of the driver's: our wrapper, or the same pointer. `name` and `version`
// (as the program asked for them) decide where the pointer alone does not.
void* route(void* real, const char* name, int version, unsigned long long flags);

}  // namespace kvram::guard

#define REAL(name) reinterpret_cast<decltype(&::name)>(::kvram::guard::g_real[::kvram::guard::cuda::k_##name])
// The variant with a per-thread default stream, or the ordinary one.
#define REAL_T(per_thread, name) ((per_thread) ? REAL(name##_ptsz) : REAL(name))
#define KV_EXPORT extern "C" __attribute__((visibility("default")))
