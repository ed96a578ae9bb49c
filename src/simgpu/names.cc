// What the driver knows by name: its entry points (cuGetProcAddress) and its error codes.
#include <string_view>
#include <unordered_map>
#include <vector>

#include "simgpu/driver.h"
#include "simgpu/stubs.h"

namespace kvram::simgpu {
namespace {

using Forms = std::unordered_map<std::string_view, std::vector<const kvram_sim_entry*>>;

// base name -> all its forms. Made once, never destroyed: programs look names up while they end, too.
const Forms& forms() {
  static const Forms& all = *[] {
    auto* map = new Forms;
    for (unsigned i = 0; i < kvram_sim_entry_count; ++i)
      (*map)[kvram_sim_entries[i].base].push_back(&kvram_sim_entries[i]);
    return map;
  }();
  return all;
}

// The newest form that `version` may have; of the per-thread forms where one exists and is asked for, as the driver
// does.
const kvram_sim_entry* choose(const std::vector<const kvram_sim_entry*>& all, int version, bool per_thread) {
  const kvram_sim_entry* best = nullptr;
  for (const kvram_sim_entry* e : all) {
    if (e->cuda_version > version || (e->per_thread != 0) != per_thread) continue;
    if (best == nullptr || e->form > best->form) best = e;
  }
  return best;
}

CUdriverProcAddressQueryResult find(const char* symbol, int version, cuuint64_t flags, void** out) {
  auto it = forms().find(symbol);
  if (it == forms().end()) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const kvram_sim_entry* found = per_thread ? choose(it->second, version, true) : nullptr;
  if (found == nullptr) found = choose(it->second, version, false);
  if (found == nullptr) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  *out = found->function;
  return CU_GET_PROC_ADDRESS_SUCCESS;
}

CUresult look_up(const char* symbol, void** out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || out == nullptr || (flags & ~kKnown) != 0 || flags == kKnown) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  CUdriverProcAddressQueryResult result = find(symbol, version, flags, out);
  if (status != nullptr) {
    *status = result;
    return CUDA_SUCCESS;
  }
  return result == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

const kvram_sim_error* error_of(CUresult code) {
  for (unsigned i = 0; i < kvram_sim_error_count; ++i) {
    if (kvram_sim_errors[i].code == static_cast<int>(code)) return &kvram_sim_errors[i];
  }
  return nullptr;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;

KV_CUDA_EXPORT cuGetProcAddress(const char* symbol, void** out, int version, cuuint64_t flags) {
  return look_up(symbol, out, version, flags, nullptr);
}
KV_CUDA_EXPORT cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult* status) {
  return look_up(symbol, out, version, flags, status);
}

// The driver's private tables are not modelled.
KV_CUDA_EXPORT cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

KV_CUDA_EXPORT cuGetErrorName(CUresult code, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const kvram_sim_error* error = error_of(code);
  *text = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
KV_CUDA_EXPORT cuGetErrorString(CUresult code, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const kvram_sim_error* error = error_of(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
