// Which driver the simulated one says it is.
#pragma once

namespace kvram::simgpu {

constexpr int kCudaVersion = 13050;
constexpr char kDriverVersion[] = "615.43.02";
constexpr char kNvmlVersion[] = "13.615.43.02";

}  // namespace kvram::simgpu
