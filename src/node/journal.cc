#include "node/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>

namespace kvram::node {
namespace {

constexpr size_t kChecksumChars = 8;
constexpr size_t kMaxLoad = 64u << 20;  // a file beyond this is not one that was written here

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

std::string framed(std::string_view line) { return fmt::format("{:08x} {}\n", crc32(line), line); }

// The text of a framed line without its newline, or nothing when it is not what was written.
std::optional<std::string_view> unframed(std::string_view raw) {
  if (raw.size() < kChecksumChars + 1 || raw[kChecksumChars] != ' ') return std::nullopt;
  std::string_view text = raw.substr(kChecksumChars + 1);
  if (fmt::format("{:08x}", crc32(text)) != raw.substr(0, kChecksumChars)) return std::nullopt;
  return text;
}

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

bool read_all(const std::string& path, std::string& text) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  char part[65536];
  ssize_t got = 0;
  while ((got = read(fd, part, sizeof part)) > 0 && text.size() < kMaxLoad) text.append(part, static_cast<size_t>(got));
  close(fd);
  return true;
}

}  // namespace

uint32_t crc32(std::string_view text) {
  uint32_t c = 0xffffffffu;
  for (char ch : text) c = kTable[(c ^ static_cast<unsigned char>(ch)) & 0xff] ^ (c >> 8);
  return c ^ 0xffffffffu;
}

Journal::Journal(std::string folder, const std::string& name, size_t max_bytes)
    : folder_(std::move(folder)), path_(folder_ + "/" + name), max_bytes_(max_bytes) {}
Journal::~Journal() {
  sync();
  if (fd_ >= 0) close(fd_);
}

std::vector<std::string> Journal::load() {
  std::vector<std::string> lines;
  std::string text;
  if (!read_all(path_, text)) return lines;
  bool damaged = false;
  size_t at = 0;
  size_t good = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // the last line was cut off
    auto line = unframed(std::string_view(text).substr(at, end - at));
    if (line) {
      lines.emplace_back(*line);
    } else {
      damaged = true;
    }
    at = good = end + 1;
  }
  if (damaged) {
    std::string aside = fmt::format("{}.corrupt-{}", path_, time(nullptr));
    if (rename(path_.c_str(), aside.c_str()) == 0) {
      kept_aside_ = fmt::format("{} was damaged and is kept aside as {}; {} of its lines could be read.", path_, aside,
                                lines.size());
    }
    rewrite(lines);
    return lines;
  }
  if (good < text.size()) {
    if (truncate(path_.c_str(), static_cast<off_t>(good)) != 0) note(errno);
  }
  return lines;
}

void Journal::note(int error) {
  bool read_only = error == EROFS || error == EACCES || error == EPERM || error == ENOENT || error == ENOTDIR;
  std::string what = strerror(error);
  if (read_only) {
    trouble_ = Error{ErrorCode::kStateReadOnly,
                     fmt::format("The state folder {} cannot be written ({}). Budgets and refusals are kept in memory "
                                 "only; make it writable or name another with --state-dir.",
                                 folder_, what)};
  } else {
    trouble_ =
        Error{ErrorCode::kStateFull,
              fmt::format("The state folder is full: {} ({}). Budgets and refusals are kept in memory and written "
                          "when there is space again.",
                          folder_, what)};
  }
}

bool Journal::open_for_append() {
  if (fd_ >= 0) return true;
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) {
    note(errno);
    return false;
  }
  struct stat facts{};
  size_ = fstat(fd_, &facts) == 0 ? static_cast<size_t>(facts.st_size) : 0;
  return true;
}

void Journal::append(std::string_view line) {
  if (trouble_.has_value() || !open_for_append()) return;  // the next rewrite has it
  std::string text = framed(line);
  if (int error = write_all(fd_, text); error != 0) {
    // Half a line must not stand before the next one.
    if (ftruncate(fd_, static_cast<off_t>(size_)) != 0) error = EIO;
    note(error);
    return;
  }
  size_ += text.size();
  dirty_ = true;
}

void Journal::rewrite(const std::vector<std::string>& lines) {
  std::string fresh = path_ + ".new";
  int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return note(errno);
  std::string text;
  for (const std::string& line : lines) text += framed(line);
  int error = write_all(fd, text);
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(fresh.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(fresh.c_str());
    return note(error);
  }
  if (int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    fsync(folder);
    close(folder);
  }
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  trouble_.reset();
  open_for_append();
}

void Journal::sync() {
  if (!dirty_ || fd_ < 0) return;
  dirty_ = false;
  if (fdatasync(fd_) != 0) note(errno);
}

}  // namespace kvram::node
