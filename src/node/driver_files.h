// Where the driver's libraries lie, so that the guard can be put in front of every path of them.
#pragma once
#include <string>
#include <vector>

namespace kvram::node {

struct DriverFiles {
  std::vector<std::string> cuda;  // every file behind a name libcuda.so*, links resolved; each once
  std::vector<std::string> nvml;
  std::string dir;  // to be put on LD_LIBRARY_PATH when it is no folder that the loader searches, else empty
};

// The real driver: the loader's cache, its standard folders and LD_LIBRARY_PATH.
DriverFiles find_driver_files();
DriverFiles simulated_driver_files();

// The names in a loader cache (the content of /etc/ld.so.cache) that begin with `prefix`, as absolute paths. Anything
// malformed gives an empty list.
std::vector<std::string> cache_paths(const std::string& cache, const std::string& prefix);

}  // namespace kvram::node
