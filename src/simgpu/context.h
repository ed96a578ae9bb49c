// Making and ending contexts.
#pragma once
#include "simgpu/driver.h"

namespace kvram::simgpu {

// A new explicit context, charged; not current anywhere yet.
CUresult make_context(Device& device, unsigned flags, unsigned api_version, std::shared_ptr<Context>* out);
// The context behind a green context; its caller keeps the primary context.
CUresult make_green_context(Device& device, std::shared_ptr<Context>* out);
// Ends a context: its streams, modules and memory go, its bytes are given back. The handle stays known as destroyed.
void end_context(const std::shared_ptr<Context>& context);
// The primary context, made when this is the first reference.
CUresult retain_primary(Device& device, std::shared_ptr<Context>* out);
CUresult release_primary(Device& device);

}  // namespace kvram::simgpu
