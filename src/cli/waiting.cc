#include "cli/waiting.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/failure.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string waiting_text(int64_t position, const std::string& reason, double seconds) {
  return fmt::format("waiting{}, place {}: {}", seconds >= 1 ? " " + format_age(seconds) : "", position,
                     printable(reason));
}

WaitingLine::WaitingLine(int fd, bool silent) : fd_(fd), silent_(silent), terminal_(isatty(fd) == 1) {}

void WaitingLine::update(int64_t position, const std::string& reason) {
  bool same = shown_ && position == position_ && reason == reason_;
  if (!shown_) since_ = seconds_now();
  shown_ = true;
  position_ = position;
  reason_ = reason;
  if (silent_ || (same && !terminal_)) return;
  draw();
}

void WaitingLine::tick() {
  if (shown_ && terminal_ && !silent_) draw();
}

void WaitingLine::draw() {
  std::string text = "vram: " + waiting_text(position_, reason_, terminal_ ? seconds_now() - since_ : 0);
  write_all(fd_, terminal_ ? "\r" + shorten(text, columns_of(fd_) - 1) + "\x1b[K" : text + "\n");
}

void WaitingLine::finish() {
  if (shown_ && terminal_ && !silent_) write_all(fd_, "\r\x1b[K");
  shown_ = false;
}

}  // namespace kvram::cli
