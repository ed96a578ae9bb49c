// Which GPUs a simulated machine has: the catalogue (data/gpus.json) and the text that picks from it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "simgpu/layout.h"

namespace kvram::simgpu {

// All entries of the catalogue, compiled in. `key` is the name used in a spec ("A10", "H100-80GB").
struct CatalogueEntry {
  std::string key;
  GpuInfo info;  // uuid and pci_bus empty
};
const std::vector<CatalogueEntry>& catalogue();

struct MachineSpec {
  std::string text;           // canonical
  std::vector<GpuInfo> gpus;  // with uuids (made from model and index: the same in every run) and bus numbers
};
// "2xA10,1xH100-80GB" ("A10" alone is one; letters in any case). Unknown model, no or too many GPUs: kBadSimSpec with a
// sentence. Thread-safe.
Result<MachineSpec> parse_spec(std::string_view text);

// "GPU-01234567-89ab-cdef-0123-456789abcdef".
std::string uuid_text(const uint8_t (&uuid)[16]);

}  // namespace kvram::simgpu
