#include "node/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

namespace kvram::node {
namespace {

std::string read_small(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[4096];
  ssize_t length = read(fd, text, sizeof text);
  close(fd);
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : "";
}

}  // namespace

std::optional<ProcessFacts> process_facts(int32_t pid) {
  std::string text = read_small(fmt::format("/proc/{}/stat", pid));
  size_t open = text.find('(');
  size_t end = text.rfind(')');  // the name may hold anything
  if (open == std::string::npos || end == std::string::npos) return std::nullopt;
  ProcessFacts facts;
  facts.pid = pid;
  facts.name = text.substr(open + 1, end - open - 1);
  const char* at = text.c_str() + end + 1;
  int field = 2;
  for (; *at != '\0'; ++at) {
    if (*at != ' ') continue;
    ++field;
    if (field == 3) facts.state = at[1];
    if (field == 4) facts.parent = static_cast<int32_t>(strtol(at + 1, nullptr, 10));
    if (field == 22) {
      facts.start = strtoull(at + 1, nullptr, 10);
      return facts;
    }
  }
  return std::nullopt;
}

uint64_t mount_namespace_of(int32_t pid) {
  struct stat facts{};
  if (stat(fmt::format("/proc/{}/ns/mnt", pid).c_str(), &facts) != 0) return 0;
  return facts.st_ino;
}

uint64_t user_of(int32_t pid) {
  struct stat facts{};
  if (stat(fmt::format("/proc/{}", pid).c_str(), &facts) != 0) return UINT64_MAX;
  return facts.st_uid;
}

std::vector<int32_t> all_pids() {
  std::vector<int32_t> pids;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = readdir(proc)) {
    int32_t pid = 0;
    const char* end = entry->d_name + strlen(entry->d_name);
    auto [at, status] = std::from_chars(entry->d_name, end, pid);
    if (status == std::errc() && at == end) pids.push_back(pid);
  }
  closedir(proc);
  return pids;
}

int open_pidfd(int32_t pid, uint64_t start) {
  auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return -1;
  // The pid may have gone to another process before the descriptor was made; after it, it cannot.
  auto facts = process_facts(pid);
  if (!facts || facts->start != start) {
    close(fd);
    return -1;
  }
  return fd;
}

std::string boot_id() {
  std::string text = read_small("/proc/sys/kernel/random/boot_id");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string user_name(uint32_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr) return found->pw_name;
  return std::to_string(uid);
}

int find_memfd(int32_t pid, uint64_t inode) {
  std::string folder = fmt::format("/proc/{}/fd", pid);
  DIR* fds = opendir(folder.c_str());
  if (fds == nullptr) return -1;
  int found = -1;
  while (const dirent* entry = readdir(fds)) {
    if (entry->d_name[0] == '.') continue;
    std::string path = folder + "/" + entry->d_name;
    char target[64];
    ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
    if (length < 7 || strncmp(target, "/memfd:", 7) != 0) continue;
    struct stat facts{};
    if (stat(path.c_str(), &facts) != 0 || facts.st_ino != inode) continue;
    found = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (found >= 0) break;
  }
  closedir(fds);
  return found;
}

}  // namespace kvram::node
