#include "cli/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvram::cli {
namespace {

using Step = std::expected<void, std::string>;

std::unexpected<std::string> refused(const std::string& what) {
  return std::unexpected(fmt::format("{}: {}", what, strerror(errno)));
}

bool write_file(const char* path, const std::string& text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  int kept = errno;
  close(fd);
  errno = kept;
  return written;
}

Step unshare_mounts() {
  if (geteuid() == 0) {
    if (unshare(CLONE_NEWNS) != 0) return refused("the system refuses a mount namespace (unshare)");
  } else {
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return refused("the system refuses a user namespace (unshare)");
    if (!write_file("/proc/self/setgroups", "deny")) return refused("setgroups cannot be denied");
    if (!write_file("/proc/self/uid_map", fmt::format("{} {} 1", uid, uid))) return refused("the uid cannot be mapped");
    if (!write_file("/proc/self/gid_map", fmt::format("{} {} 1", gid, gid))) return refused("the gid cannot be mapped");
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return refused("/ cannot be made a slave mount");
  return {};
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat x{};
  struct stat y{};
  return stat(a.c_str(), &x) == 0 && stat(b.c_str(), &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// A bind needs a file to lie on.
Step make_target(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return refused(path + " cannot be made");
  close(fd);
  return {};
}

Step bind(const std::string& from, const std::string& onto, std::vector<std::string>* made) {
  if (mount(from.c_str(), onto.c_str(), nullptr, MS_BIND, nullptr) != 0) return refused(onto + " cannot be covered");
  made->push_back(onto);
  return {};
}

Step cover(const Cover& c, std::vector<std::string>* made) {
  if (c.paths.empty()) return {};
  bool covered = true;  // by a `vram run` around this one, whose mounts are still here
  for (const std::string& path : c.paths) covered = covered && same_file(path, c.guard);
  if (covered) return {};
  if (access(c.stash.c_str(), F_OK) != 0) {
    if (Step target = make_target(c.stash); !target) return target;
  }
  if (Step bound = bind(c.paths.front(), c.stash, made); !bound) return bound;
  for (const std::string& path : c.paths) {
    if (same_file(path, c.guard)) continue;  // a second name of the same file
    if (Step bound = bind(c.guard, path, made); !bound) return bound;
  }
  return {};
}

}  // namespace

std::expected<void, std::string> enter_namespace(const std::vector<Cover>& covers) {
  for (const Cover& c : covers) {
    if (access(c.guard.c_str(), R_OK) != 0) return refused(c.guard + " cannot be read");
  }
  if (Step own = unshare_mounts(); !own) return own;
  std::vector<std::string> made;
  for (const Cover& c : covers) {
    Step covered = cover(c, &made);
    if (covered) continue;
    for (auto mounted = made.rbegin(); mounted != made.rend(); ++mounted) umount2(mounted->c_str(), MNT_DETACH);
    return covered;
  }
  return {};
}

}  // namespace kvram::cli
