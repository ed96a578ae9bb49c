// What the machine's GPUs are and what runs on them: NVML behind one small interface.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "model/gpu.h"

namespace kvram::gpu {

struct ProcessMemory {
  int32_t pid = 0;
  Bytes resident;
};

// One GPU as last measured.
struct Measurement {
  bool ok = false;     // false: the driver did not answer for this GPU; the rest is the default
  std::string health;  // "ok", or NVML's words
  Bytes used;          // by programs, the driver's reserve left out
  Bytes free;
  std::vector<ProcessMemory> processes;  // each pid once
};

struct Inventory {
  std::string driver;  // "580.95.05"
  int cuda = 0;        // 13000
  std::string nvml;
  std::string library;  // the file NVML was loaded from
  std::vector<model::Gpu> gpus;
};

// Used by one thread.
class Source {
 public:
  virtual ~Source() = default;
  virtual const Inventory& inventory() const = 0;
  // One entry per GPU of the inventory, in its order. An error when the driver as a whole does not answer.
  virtual Result<std::vector<Measurement>> measure() = 0;
};

// Loads and initialises NVML: `library` is a path or "libnvidia-ml.so.1". kDriverMissing with what NVML says.
Result<std::unique_ptr<Source>> open_nvml(const std::string& library);

}  // namespace kvram::gpu
