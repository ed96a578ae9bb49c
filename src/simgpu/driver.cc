#include "simgpu/driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

constexpr uint32_t kMarkReady = 1;
constexpr uint32_t kMarkStarting = 2;

// A page that a forked child finds zeroed: the driver does not survive fork, and says so instead of touching state that
// belongs to the parent. Set up before anything else, so that a child of a half-initialised parent is found out too.
std::atomic<uint32_t*> g_mark = nullptr;
std::mutex g_init_mutex;

uint32_t* mark_page() {
  if (uint32_t* seen = g_mark.load(std::memory_order_acquire)) return seen;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  madvise(page, 4096, MADV_WIPEONFORK);
  auto* mark = static_cast<uint32_t*>(page);
  *mark = kMarkStarting;
  uint32_t* expected = nullptr;
  if (g_mark.compare_exchange_strong(expected, mark)) return mark;
  munmap(page, 4096);
  return expected;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// The GPU that one entry of CUDA_VISIBLE_DEVICES names: an index, a UUID or a unique beginning of one; -1 if none.
int find_gpu(Machine& machine, std::string_view entry) {
  if (entry.starts_with("GPU-")) {
    int found = -1;
    for (uint32_t g = 0; g < machine.gpu_count(); ++g) {
      if (!uuid_text(machine.gpu(g).uuid).starts_with("GPU-" + lower(entry.substr(4)))) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(g);
    }
    return found;
  }
  if (entry.empty() || entry.size() > 4) return -1;
  int index = 0;
  for (char c : entry) {
    if (c < '0' || c > '9') return -1;
    index = index * 10 + (c - '0');
  }
  return index < static_cast<int>(machine.gpu_count()) ? index : -1;
}

// As the driver reads it: the list ends at the first entry that names no GPU; an entry that comes twice makes none
// visible.
std::vector<uint32_t> visible_gpus(Machine& machine) {
  std::vector<uint32_t> out;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (uint32_t g = 0; g < machine.gpu_count(); ++g) out.push_back(g);
    return out;
  }
  std::string_view rest = text;
  while (true) {
    size_t comma = rest.find(',');
    int gpu = find_gpu(machine, trimmed(rest.substr(0, comma)));
    if (gpu < 0) return out;
    for (uint32_t seen : out) {
      if (seen == static_cast<uint32_t>(gpu)) return {};
    }
    out.push_back(static_cast<uint32_t>(gpu));
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

Driver& Driver::get() {
  static Driver* const driver = new Driver;
  return *driver;
}

CUresult Driver::init() {
  uint32_t* mark = mark_page();
  if (mark == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (*mark == 0) return CUDA_ERROR_NOT_INITIALIZED;  // a forked child
  std::lock_guard lock(g_init_mutex);
  if (*mark == kMarkReady) return CUDA_SUCCESS;
  auto machine = Machine::open(sim_folder(), spec_from_environment(), true);
  if (!machine) {
    error_ = machine.error().message;
    return CUDA_ERROR_NO_DEVICE;
  }
  std::vector<uint32_t> gpus = visible_gpus(**machine);
  if (gpus.empty()) {
    error_ = "CUDA_VISIBLE_DEVICES leaves no simulated GPU.";
    return CUDA_ERROR_NO_DEVICE;
  }
  machine_ = std::move(*machine);
  for (uint32_t g : gpus) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<int>(devices_.size());
    device->gpu = g;
    device->info = &machine_->gpu(g);
    make_default_pools(*device);
    devices_.push_back(std::move(device));
  }
  std::atomic_ref<uint32_t>(*mark).store(kMarkReady, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult ready() {
  uint32_t* mark = g_mark.load(std::memory_order_acquire);
  if (mark == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  return std::atomic_ref<uint32_t>(*mark).load(std::memory_order_acquire) == kMarkReady ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult charge(Device& device, uint64_t bytes) {
  return Driver::get().machine().charge(device.gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void uncharge(Device& device, uint64_t bytes) { Driver::get().machine().uncharge(device.gpu, bytes); }

}  // namespace kvram::simgpu

extern "C" int kvsim_unsupported(const char* name) {
  kvram::simgpu::count_unsupported(name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

KV_CUDA_EXPORT cuInit(unsigned flags) {
  using namespace kvram::simgpu;
  if (CUresult fault = fault_check(nullptr, "cuInit"); fault != CUDA_SUCCESS) return fault;
  return flags == 0 ? Driver::get().init() : CUDA_ERROR_INVALID_VALUE;
}
