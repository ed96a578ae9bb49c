// Facts written into a copy of a guard library, so that nothing in the program's environment can change them. The
// daemon makes the copy and fills the field behind the magic; an unpatched library has an empty path and falls back to
// KUBE_VRAM_SOCKET (tests, development).
#pragma once

namespace kvram::lease {

constexpr unsigned kEmbedPathBytes = 240;
struct Embedded {
  char magic[16];                     // kEmbedMagic: found by the patcher
  char socket_path[kEmbedPathBytes];  // NUL-terminated
};
#define KVRAM_EMBED_MAGIC "kvram-embed-v1!"

// DT_NEEDED of the guard's libraries: valid as it stands, and long enough to be overwritten by an absolute path.
constexpr unsigned kNeededPathBytes = 240;
constexpr char kRealCudaName[] = "libcuda.real.so";
constexpr char kRealNvmlName[] = "libnvidia-ml.real.so";

}  // namespace kvram::lease
