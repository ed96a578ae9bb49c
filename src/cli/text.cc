#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace kvram::cli {
namespace {

struct Point {
  uint32_t code = 0;
  size_t length = 1;  // bytes
  bool valid = false;
};

// One code point of UTF-8, overlong forms and surrogates refused.
Point decode(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  uint32_t code = first & (0xffU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, length, true};
}

struct Range {
  uint32_t first, last;
};
bool within(uint32_t code, const Range* begin, const Range* end) {
  return std::any_of(begin, end, [code](Range r) { return code >= r.first && code <= r.last; });
}

// C1 controls, soft hyphen, zero-width and direction marks, line separators, byte order mark, private and tag planes.
constexpr Range kUnsafe[] = {{0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},   {0x180e, 0x180e},
                             {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f}, {0xfeff, 0xfeff},
                             {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},  {0x3041, 0xa4cf}, {0xac00, 0xd7a3},
                           {0xf900, 0xfaff},   {0xfe30, 0xfe6f},  {0xff00, 0xff60}, {0xffe0, 0xffe6},
                           {0x1f300, 0x1faff}, {0x20000, 0x3fffd}};
constexpr Range kCombining[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},  {0x1ab0, 0x1aff},
                                {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};

size_t width_of(uint32_t code) {
  if (within(code, std::begin(kCombining), std::end(kCombining))) return 0;
  return within(code, std::begin(kWide), std::end(kWide)) ? 2 : 1;
}

void append_escape(std::string* out, const Point& p, unsigned char byte) {
  if (!p.valid) {
    *out += fmt::format("\\x{:02x}", byte);
  } else if (p.code == '\n') {
    *out += "\\n";
  } else if (p.code == '\t') {
    *out += "\\t";
  } else if (p.code == '\r') {
    *out += "\\r";
  } else if (p.code < 0x100) {
    *out += fmt::format("\\x{:02x}", p.code);
  } else {
    *out += fmt::format("\\u{{{:x}}}", p.code);
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    Point p = decode(text);
    if (p.valid && p.code >= 0x20 && !within(p.code, std::begin(kUnsafe), std::end(kUnsafe))) {
      out.append(text.substr(0, p.length));
    } else {
      append_escape(&out, p, static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(p.length);
  }
  return out;
}

size_t display_width(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    Point p = decode(text);
    columns += p.valid ? width_of(p.code) : 1;
    text.remove_prefix(p.length);
  }
  return columns;
}

std::string shorten(std::string_view text, size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  std::string_view tail = std::string_view("...").substr(0, columns);
  size_t room = columns - tail.size();
  size_t used = 0;
  size_t bytes = 0;
  while (bytes < text.size()) {
    Point p = decode(text.substr(bytes));
    size_t w = p.valid ? width_of(p.code) : 1;
    if (used + w > room) break;
    used += w;
    bytes += p.length;
  }
  return std::string(text.substr(0, bytes)) + std::string(tail);
}

std::string pad_right(std::string_view text, size_t columns) {
  size_t width = display_width(text);
  return std::string(text) + std::string(columns > width ? columns - width : 0, ' ');
}

std::string pad_left(std::string_view text, size_t columns) {
  size_t width = display_width(text);
  return std::string(columns > width ? columns - width : 0, ' ') + std::string(text);
}

std::vector<std::string> wrap(std::string_view text, size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!line.empty() && display_width(line) + 1 + display_width(word) > columns) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t change = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string_view nearest(std::string_view typed, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  size_t best_distance = 64;
  if (typed.size() > 40) return best;
  for (std::string_view candidate : candidates) {
    size_t distance = edit_distance(typed, candidate);
    bool near = distance <= 2 && distance < std::max(candidate.size(), typed.size());
    bool begins = typed.size() >= 3 && candidate.starts_with(typed);
    if ((near || begins) && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string format_age(double seconds) {
  int64_t s = seconds > 0 ? static_cast<int64_t>(seconds) : 0;
  if (s < 120) return fmt::format("{}s", s);
  if (s < 120 * 60) return fmt::format("{}m", s / 60);
  if (s < 48 * 3600) return fmt::format("{}h", s / 3600);
  return fmt::format("{}d", s / 86400);
}

}  // namespace kvram::cli
