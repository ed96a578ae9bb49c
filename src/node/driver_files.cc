#include "node/driver_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "node/paths.h"

namespace kvram::node {
namespace {

constexpr char kCacheMagic[] = "glibc-ld.so.cache1.1";

struct CacheHeader {
  char magic[20];
  uint32_t entries;
  uint32_t string_bytes;
  uint32_t unused[5];
};
struct CacheEntry {
  int32_t flags;
  uint32_t key;    // offset of the soname
  uint32_t value;  // offset of the path
  uint32_t os;
  uint64_t hwcap;
};

const char* text_at(const std::string& cache, size_t at) {
  if (at >= cache.size() || cache.find('\0', at) == std::string::npos) return nullptr;
  return cache.data() + at;
}

void add_resolved(std::vector<std::string>& files, const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) return;
  if (std::find(files.begin(), files.end(), resolved) == files.end()) files.emplace_back(resolved);
}

void add_from_folder(std::vector<std::string>& files, const std::string& folder, const char* prefix) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) add_resolved(files, folder + "/" + entry->d_name);
  }
  closedir(dir);
}

std::vector<std::string> search_path() {
  std::vector<std::string> folders = {"/usr/lib/x86_64-linux-gnu",
                                      "/usr/lib/aarch64-linux-gnu",
                                      "/usr/lib64",
                                      "/usr/lib",
                                      "/lib64",
                                      "/lib",
                                      "/usr/lib/x86_64-linux-gnu/nvidia/current",
                                      "/usr/local/nvidia/lib64",
                                      "/usr/lib/wsl/lib",
                                      "/run/opengl-driver/lib"};
  if (const char* listed = getenv("LD_LIBRARY_PATH")) {
    std::string text = listed;
    for (size_t at = 0; at <= text.size();) {
      size_t end = std::min(text.find(':', at), text.size());
      if (end > at) folders.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  return folders;
}

std::vector<std::string> find_all(const std::string& cache, const char* prefix) {
  std::vector<std::string> files;
  for (const std::string& path : cache_paths(cache, prefix)) add_resolved(files, path);
  for (const std::string& folder : search_path()) add_from_folder(files, folder, prefix);
  return files;
}

}  // namespace

std::vector<std::string> cache_paths(const std::string& cache, const std::string& prefix) {
  std::vector<std::string> paths;
  size_t start = cache.find(kCacheMagic);  // an old format may stand before it; offsets count from here
  if (start == std::string::npos || cache.size() - start < sizeof(CacheHeader)) return paths;
  CacheHeader header{};
  memcpy(&header, cache.data() + start, sizeof header);
  if (header.entries > (cache.size() - start - sizeof header) / sizeof(CacheEntry)) return paths;
  for (uint32_t i = 0; i < header.entries; ++i) {
    CacheEntry entry{};
    memcpy(&entry, cache.data() + start + sizeof header + i * sizeof entry, sizeof entry);
    const char* name = text_at(cache, start + entry.key);
    const char* path = text_at(cache, start + entry.value);
    if (name != nullptr && path != nullptr && strncmp(name, prefix.c_str(), prefix.size()) == 0)
      paths.emplace_back(path);
  }
  return paths;
}

DriverFiles find_driver_files() {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  std::string cache((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  DriverFiles files;
  files.cuda = find_all(cache, "libcuda.so");
  files.nvml = find_all(cache, "libnvidia-ml.so");
  return files;
}

DriverFiles simulated_driver_files() {
  DriverFiles files;
  files.dir = lib_dir() + "/sim";
  add_from_folder(files.cuda, files.dir, "libcuda.so");
  add_from_folder(files.nvml, files.dir, "libnvidia-ml.so");
  return files;
}

}  // namespace kvram::node
