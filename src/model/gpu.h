// Plain data about GPUs and requests, shared by placement, the node ledger and what reports on them. No behaviour.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace kvram::model {

using GpuUuid = std::array<uint8_t, 16>;  // as cuDeviceGetUuid gives it

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML and CUDA_VISIBLE_DEVICES write it.
std::string uuid_text(const GpuUuid& uuid);
// The reverse; false and nothing written for another form.
bool parse_uuid(const std::string& text, GpuUuid& uuid);

struct Gpu {
  GpuUuid uuid{};
  int index = 0;  // NVML's
  std::string name;
  Bytes total;
  Bytes reserved;  // what the driver keeps for itself
  bool healthy = true;
  std::string health;  // "ok", or what is wrong
};

// What `vram run` or a container asks for. Either memory > 0 or cards > 0.
struct Request {
  Bytes memory;  // total over the GPUs
  int gpus = 1;  // equal parts on this many
  int cards = 0;
};

// A budget's part on each of its GPUs.
struct Part {
  GpuUuid uuid{};
  Bytes limit;
};
using Assignment = std::vector<Part>;

// Per GPU: total / gpus, rounded up to 1 MiB.
Bytes part_of(const Request& request);

}  // namespace kvram::model
