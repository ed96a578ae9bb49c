#include "node/guard_folder.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "lease/embed.h"
#include "node/paths.h"

namespace kvram::node {
namespace {

std::unexpected<Error> damaged(const std::string& why) {
  return fail(
      ErrorCode::kGuardMissing,
      fmt::format("The guard library {}. Without it a budget would not be kept; build or install kube-vram again.",
                  why));
}

template <typename T>
bool read_at(const std::string& bytes, uint64_t offset, T& into) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof into) return false;
  memcpy(&into, bytes.data() + offset, sizeof into);
  return true;
}

// File offset of a virtual address, by the loadable segments.
uint64_t file_offset(const std::string& bytes, const Elf64_Ehdr& elf, uint64_t address) {
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(bytes, elf.e_phoff + i * sizeof segment, segment) || segment.p_type != PT_LOAD) continue;
    if (address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz) {
      return segment.p_offset + (address - segment.p_vaddr);
    }
  }
  return UINT64_MAX;
}

// File offset of the text of the DT_NEEDED entry that ends in `name`; UINT64_MAX when there is none.
uint64_t find_needed(const std::string& bytes, const std::string& name) {
  Elf64_Ehdr elf{};
  if (!read_at(bytes, 0, elf) || memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0) return UINT64_MAX;
  Elf64_Phdr dynamic{};
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (read_at(bytes, elf.e_phoff + i * sizeof segment, segment) && segment.p_type == PT_DYNAMIC) dynamic = segment;
  }
  uint64_t strings = UINT64_MAX;
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.p_filesz; at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry{};
      if (!read_at(bytes, dynamic.p_offset + at, entry) || entry.d_tag == DT_NULL) break;
      if (pass == 0 && entry.d_tag == DT_STRTAB) strings = file_offset(bytes, elf, entry.d_un.d_ptr);
      if (pass == 0 || entry.d_tag != DT_NEEDED || strings >= bytes.size()) continue;
      uint64_t text = strings + entry.d_un.d_val;
      if (text >= bytes.size() || bytes.find('\0', text) == std::string::npos) continue;
      if (std::string_view(bytes.data() + text).ends_with("/" + name)) return text;
    }
  }
  return UINT64_MAX;
}

bool read_file(const std::string& path, std::string& bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return true;
}

// Whole or not at all; a file with this content already is not touched.
Result<void> put_file(const std::string& path, const std::string& bytes, unsigned mode) {
  std::string there;
  if (read_file(path, there) && there == bytes) return {};
  std::string fresh = path + ".new";
  unlink(fresh.c_str());
  int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  bool written = fd >= 0 && fchmod(fd, mode) == 0;
  for (size_t at = 0; written && at < bytes.size();) {
    ssize_t part = write(fd, bytes.data() + at, bytes.size() - at);
    if (part < 0 && errno == EINTR) continue;
    written = part > 0;
    at += written ? static_cast<size_t>(part) : 0;
  }
  int error = errno;
  if (fd >= 0) close(fd);
  if (written && rename(fresh.c_str(), path.c_str()) == 0) return {};
  if (written) error = errno;
  unlink(fresh.c_str());
  return fail(ErrorCode::kRunFolder, fmt::format("{} cannot be written: {}.", path, strerror(error)));
}

Result<void> put_link(const std::string& path, const std::string& target) {
  char there[4096];
  ssize_t length = readlink(path.c_str(), there, sizeof there - 1);
  if (length >= 0 && std::string_view(there, static_cast<size_t>(length)) == target) return {};
  std::string fresh = path + ".new";
  unlink(fresh.c_str());
  if (symlink(target.c_str(), fresh.c_str()) == 0 && rename(fresh.c_str(), path.c_str()) == 0) return {};
  return fail(ErrorCode::kRunFolder, fmt::format("{} cannot be made: {}.", path, strerror(errno)));
}

struct Library {
  const char* name;      // of the guard's library
  const char* dev_name;  // link that build tools use
  const char* real_name;
  const std::vector<std::string>* genuine;
  std::string* ns;
  std::string* stash;
};

Result<void> put_library(const Library& lib, const std::string& run_dir, const std::string& source) {
  std::string bytes;
  if (!read_file(source + "/" + lib.name, bytes)) return damaged(fmt::format("{}/{} cannot be read", source, lib.name));
  std::string socket = socket_path(run_dir);
  std::string path_dir = run_dir + "/guard/path";
  std::string ns_dir = run_dir + "/guard/ns";
  std::string real = path_dir + "/" + lib.real_name;
  *lib.ns = ns_dir + "/" + lib.name;
  *lib.stash = ns_dir + "/" + lib.real_name;
  Result<std::string> for_path = patch_guard(bytes, socket, lib.real_name, real);
  if (!for_path) return std::unexpected(for_path.error());
  Result<std::string> for_ns = patch_guard(bytes, socket, lib.real_name, *lib.stash);
  if (!for_ns) return std::unexpected(for_ns.error());
  if (auto put = put_file(path_dir + "/" + lib.name, *for_path, 0755); !put) return put;
  if (auto put = put_file(*lib.ns, *for_ns, 0755); !put) return put;
  if (auto put = put_link(path_dir + "/" + lib.dev_name, lib.name); !put) return put;
  if (!lib.genuine->empty()) {
    if (auto put = put_link(real, lib.genuine->front()); !put) return put;
  }
  // A mount point for the genuine library. Never replaced: that would take the mount away from running programs.
  int fd = open(lib.stash->c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return fail(ErrorCode::kRunFolder, fmt::format("{} cannot be made: {}.", *lib.stash, strerror(errno)));
  fchmod(fd, 0644);
  close(fd);
  return {};
}

}  // namespace

Result<std::string> patch_guard(std::string library, const std::string& socket, const std::string& real_name,
                                const std::string& real_path) {
  size_t mark = library.find(std::string(KVRAM_EMBED_MAGIC, sizeof KVRAM_EMBED_MAGIC));
  if (mark == std::string::npos || library.size() - mark < sizeof(lease::Embedded)) {
    return damaged("has no place for the daemon's socket");
  }
  uint64_t needed = find_needed(library, real_name);
  if (needed == UINT64_MAX) return damaged(fmt::format("does not need {}", real_name));
  size_t room = strlen(library.data() + needed);
  if (socket.size() >= lease::kEmbedPathBytes || real_path.size() > room) {
    return fail(ErrorCode::kRunFolder,
                fmt::format("The run folder's name is too long for the guard: {} and {} have to fit "
                            "into {} bytes. Name a shorter one with --run-dir.",
                            socket, real_path, room));
  }
  auto put = [&library](size_t at, size_t size, std::string text) {
    text.resize(size, '\0');
    library.replace(at, size, text);
  };
  put(mark + offsetof(lease::Embedded, socket_path), lease::kEmbedPathBytes, socket);
  put(needed, room, real_path);
  return library;
}

Result<GuardFolder> prepare_guard_folder(const std::string& run_dir, const std::string& source,
                                         const DriverFiles& driver) {
  GuardFolder folder;
  folder.path_dir = run_dir + "/guard/path";
  for (const char* part : {"/guard", "/guard/path", "/guard/ns"}) {
    if (auto made = make_private_dir(run_dir + part, 0755); !made) return std::unexpected(made.error());
  }
  Library cuda{"libcuda.so.1", "libcuda.so", lease::kRealCudaName, &driver.cuda, &folder.ns_cuda, &folder.stash_cuda};
  Library nvml{"libnvidia-ml.so.1", "libnvidia-ml.so", lease::kRealNvmlName,
               &driver.nvml,        &folder.ns_nvml,   &folder.stash_nvml};
  for (const Library& library : {cuda, nvml}) {
    if (auto put = put_library(library, run_dir, source); !put) return std::unexpected(put.error());
  }
  return folder;
}

}  // namespace kvram::node
