// What a module image says of itself: its kernels and variables, as far as the simulation needs them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvram::simgpu {

struct ImageParam {
  uint32_t offset;
  uint32_t bytes;
};
struct ImageKernel {
  std::string name;
  std::vector<ImageParam> params;
  bool params_known = false;    // only PTX says
  uint64_t gpu_ns = 10000;      // of one launch; "// sim: us=100" in or right before the entry sets it
  uint32_t registers = 32;      // "// sim: regs=64"
  uint32_t shared_bytes = 0;    // static
  uint32_t local_bytes = 0;     // "// sim: local=256"
  uint32_t max_threads = 1024;  // .maxntid, .reqntid
};
struct ImageGlobal {
  std::string name;
  uint64_t bytes = 0;
  bool managed = false;
};

struct Image {
  enum class Status { kGood, kInvalid, kBadPtx } status = Status::kInvalid;
  uint64_t bytes = 0;   // length, by lease/module_image.h
  bool opaque = false;  // compressed: whatever kernel is asked for counts as there, without parameters
  std::vector<ImageKernel> kernels;
  std::vector<ImageGlobal> globals;
};

// PTX text, a cubin (64-bit ELF), a fat binary or its wrapper.
Image read_image(const void* data);
// An image that came from a file and ends at its end: never read past it. `bytes` has a NUL behind it.
Image read_file_image(const std::string& content);
// For tests: PTX alone.
Image read_ptx(std::string_view text);

}  // namespace kvram::simgpu
