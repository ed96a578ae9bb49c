// The guard's libraries made ready for programs: copies that carry the daemon's socket and the way to the genuine
// driver, so that nothing in a program's environment is needed and nothing in it can change them.
#pragma once
#include <string>

#include "base/result.h"
#include "node/driver_files.h"

namespace kvram::node {

struct GuardFolder {
  std::string path_dir;  // for LD_LIBRARY_PATH
  std::string ns_cuda;   // to be bound over the driver's files in a private namespace
  std::string ns_nvml;
  std::string stash_cuda;  // where the genuine library is bound to first; an empty file outside
  std::string stash_nvml;
};

// Makes <run_dir>/guard/{path,ns} from `source` (lib/kube-vram/guard). Files that are right already are left alone,
// because running programs may use them; others are replaced by rename. kGuardMissing, kRunFolder.
Result<GuardFolder> prepare_guard_folder(const std::string& run_dir, const std::string& source,
                                         const DriverFiles& driver);

// A copy of a guard library's bytes with the socket's path filled in and the DT_NEEDED that ends in `real_name`
// replaced by `real_path`. kGuardMissing when the library has no such places or the paths do not fit.
Result<std::string> patch_guard(std::string library, const std::string& socket, const std::string& real_name,
                                const std::string& real_path);

}  // namespace kvram::node
