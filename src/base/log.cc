#include "base/log.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

namespace kvram::log {
namespace {

constexpr size_t kMaxLine = 2048;
constexpr int kMaxRepeats = 5;  // of one text within a second

struct Repeats {
  std::string text;
  time_t second = 0;
  int count = 0;
};
Repeats last;

void append_quoted(std::string& line, std::string_view value) {
  line += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  line += '"';
}

void write_line(char level, std::string_view text, std::initializer_list<Field> fields) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (last.text == text && last.second == now.tv_sec) {
    if (++last.count > kMaxRepeats) return;
  } else {
    last = Repeats{std::string(text), now.tv_sec, 1};
  }
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  std::string line = fmt::format("{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {}", level, utc.tm_mon + 1, utc.tm_mday,
                                 utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000, text);
  for (const Field& field : fields) {
    line += ' ';
    line += field.first;
    line += '=';
    append_quoted(line, field.second);
  }
  if (line.size() > kMaxLine) line.resize(kMaxLine);
  line += '\n';
  // A log that cannot be written must not stop the daemon.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void info(std::string_view text, std::initializer_list<Field> fields) { write_line('I', text, fields); }
void warning(std::string_view text, std::initializer_list<Field> fields) { write_line('W', text, fields); }
void error(std::string_view text, std::initializer_list<Field> fields) { write_line('E', text, fields); }

}  // namespace kvram::log
