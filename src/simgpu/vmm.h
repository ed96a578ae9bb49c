// Virtual memory management: what other parts ask of it.
#pragma once
#include "simgpu/memory.h"

namespace kvram::simgpu {

// Is every byte mapped and readable or writable? Mappings may lie side by side.
bool vmm_range_accessible(CUdeviceptr address, size_t bytes);
// The mapping that holds an address. `backing` may be null.
bool vmm_mapping_of(CUdeviceptr address, CUdeviceptr* base, size_t* size, std::shared_ptr<Backing>* backing);

}  // namespace kvram::simgpu
