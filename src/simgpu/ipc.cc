// Memory handed to another process by a handle of bytes (cuIpc*). The memory lives until its owner has freed it and
// every process that opened it has closed it or ended. Events between processes are not modelled.
#include <unistd.h>

#include <cstring>
#include <map>

#include "simgpu/memory.h"

namespace kvram::simgpu {
namespace {

// What a CUipcMemHandle holds; opaque to programs. Its numbers are checked against the machine before they are used.
struct Ticket {
  uint64_t magic;
  uint64_t generation;
  uint64_t size;
  uint32_t object;
  int32_t pid;
};
constexpr uint64_t kTicketMagic = 0x6b7672616d697063;  // "kvramipc"
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle));

// Objects that this process has open: one address each, however often it is opened.
struct Opened {
  std::mutex mutex;
  std::map<std::pair<uint32_t, uint64_t>, CUdeviceptr> address;  // object and generation
};
Opened& opened() {
  static auto* const o = new Opened;
  return *o;
}

CUresult get_handle(CUipcMemHandle* out, CUdeviceptr pointer) {
  Block block;
  if (out == nullptr || !find_block(pointer, &block) || block.kind != BlockKind::kLinear)
    return CUDA_ERROR_INVALID_VALUE;
  if (!share_backing(*block.backing, kObjectLinear)) return CUDA_ERROR_OPERATING_SYSTEM;
  Ticket ticket{kTicketMagic, block.backing->shared->generation, block.size, block.backing->shared->index, getpid()};
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

Device* device_of(uint32_t gpu) {
  for (int d = 0; d < Driver::get().device_count(); ++d) {
    if (Driver::get().device(d)->gpu == gpu) return Driver::get().device(d);
  }
  return nullptr;
}

CUresult open_new(Context& context, const Ticket& ticket, CUdeviceptr* out) {
  auto shared = hold_shared(ticket.object, ticket.generation);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  const Object object = Driver::get().machine().object(ticket.object);
  Device* device = device_of(object.gpu);
  if (object.kind != kObjectLinear || ticket.size > object.length || device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Block block;
  block.backing = map_foreign(device, object.arena, object.offset, object.length, std::move(shared));
  if (!block.backing) return CUDA_ERROR_MAP_FAILED;
  block.base = reinterpret_cast<CUdeviceptr>(block.backing->address);
  block.size = ticket.size;
  block.kind = BlockKind::kIpc;
  block.device = device;
  block.context = &context;
  block.opens = 1;
  *out = block.base;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

CUresult open_handle(Context& context, CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags) {
  Ticket ticket;
  std::memcpy(&ticket, &handle, sizeof ticket);
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (ticket.magic != kTicketMagic || ticket.object >= kMaxObjects) return CUDA_ERROR_INVALID_VALUE;
  if (ticket.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // a process cannot open what it exported itself
  std::lock_guard lock(opened().mutex);
  auto key = std::make_pair(ticket.object, ticket.generation);
  if (auto it = opened().address.find(key); it != opened().address.end()) {
    if (update_block(it->second, [](Block& b) { return b.kind == BlockKind::kIpc && ++b.opens > 0; })) {
      return *out = it->second, CUDA_SUCCESS;
    }
    opened().address.erase(it);  // it went with its context
  }
  CUresult r = open_new(context, ticket, out);
  if (r == CUDA_SUCCESS) opened().address[key] = *out;
  return r;
}

CUresult close_handle(Context& context, CUdeviceptr pointer) {
  drain_context(&context);
  std::lock_guard lock(opened().mutex);
  bool last = false;
  bool known = update_block(pointer, [&](Block& b) {
    if (b.kind != BlockKind::kIpc) return false;
    last = --b.opens == 0;
    return true;
  });
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  Block block;
  if (!last || !remove_block(pointer, {BlockKind::kIpc}, &block)) return CUDA_SUCCESS;
  std::erase_if(opened().address, [&](const auto& entry) { return entry.second == pointer; });
  dispose(std::move(block));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr pointer) {
  return with_context([&](Context&) { return get_handle(out, pointer); });
}
KV_CUDA_EXPORT cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return with_context([&](Context& c) { return open_handle(c, out, handle, flags); });
}
KV_CUDA_EXPORT cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return with_context([&](Context& c) { return open_handle(c, out, handle, flags); });
}
KV_CUDA_EXPORT cuIpcCloseMemHandle(CUdeviceptr pointer) {
  return with_context([&](Context& c) { return close_handle(c, pointer); });
}
