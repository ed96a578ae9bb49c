#include "node/paths.h"

#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace kvram::node {
namespace {

std::string env(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}
std::string with_sim(const std::string& folder, bool simulated) { return simulated ? folder + "/sim" : folder; }

}  // namespace

std::string prefix() {
  if (std::string named = env("KUBE_VRAM_PREFIX"); !named.empty()) return named;
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  for (int up = 0; up < 2; ++up) path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  return path.empty() ? "/usr" : path;
}
std::string lib_dir() { return prefix() + "/lib/kube-vram"; }

std::string run_dir(bool simulated, const std::string& chosen) {
  if (!chosen.empty()) return with_sim(chosen, simulated);
  if (std::string named = env("KUBE_VRAM_RUN_DIR"); !named.empty()) return with_sim(named, simulated);
  if (geteuid() == 0) return with_sim(kSystemRunDir, simulated);
  if (std::string base = env("XDG_RUNTIME_DIR"); !base.empty()) return with_sim(base + "/kube-vram", simulated);
  return with_sim(fmt::format("/tmp/kube-vram-{}", geteuid()), simulated);
}

std::string state_dir(bool simulated, const std::string& chosen) {
  if (!chosen.empty()) return with_sim(chosen, simulated);
  if (std::string named = env("KUBE_VRAM_STATE_DIR"); !named.empty()) return with_sim(named, simulated);
  if (geteuid() == 0) return with_sim("/var/lib/kube-vram", simulated);
  if (std::string base = env("XDG_STATE_HOME"); !base.empty()) return with_sim(base + "/kube-vram", simulated);
  std::string home = env("HOME");
  if (home.empty()) home = fmt::format("/tmp/kube-vram-{}", geteuid());
  return with_sim(home + "/.local/state/kube-vram", simulated);
}

std::string socket_path(const std::string& run_dir) { return run_dir + "/node.sock"; }

std::string client_run_dir(bool simulated, const std::string& chosen) {
  std::string system = with_sim(kSystemRunDir, simulated);
  bool named = !chosen.empty() || !env("KUBE_VRAM_RUN_DIR").empty();
  if (!named && access(socket_path(system).c_str(), F_OK) == 0) return system;
  return run_dir(simulated, chosen);
}

std::string sim_dir() {
  if (std::string named = env("KUBE_VRAM_SIM_DIR"); !named.empty()) return named;
  return fmt::format("/dev/shm/kube-vram-sim-{}", geteuid());
}

Result<void> make_private_dir(const std::string& path, unsigned mode) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0755);  // what is missing shows below
  }
  if (mkdir(path.c_str(), mode) == 0) {
    chmod(path.c_str(), mode);  // the umask may have taken bits away
  } else if (errno != EEXIST) {
    return fail(ErrorCode::kRunFolder, fmt::format("The folder {} cannot be made: {}.", path, strerror(errno)));
  }
  struct stat facts{};
  if (lstat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) {
    return fail(ErrorCode::kRunFolder, fmt::format("{} is not a folder. Move it away or name another one.", path));
  }
  if (facts.st_uid != geteuid() || (facts.st_mode & 022) != 0) {
    return fail(
        ErrorCode::kRunFolder,
        fmt::format("The folder {} belongs to uid {} and has mode {:o}; it has to belong to uid {} and must not "
                    "be writable for others, or they could take the daemon's place. Name another folder.",
                    path, facts.st_uid, facts.st_mode & 07777u, geteuid()));
  }
  return {};
}

}  // namespace kvram::node
