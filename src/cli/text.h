// Text for terminals: what other people's processes are called must never move the cursor or colour the screen.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvram::cli {

// The text with control characters, invalid UTF-8 and invisible or direction-changing code points written as escapes
// (\n, \x1b, \u{202e}). Harmless to print anywhere; no further quoting.
std::string printable(std::string_view text);

// Columns that printable() text takes: one a code point, two for wide East Asian ones, none for combining marks.
size_t display_width(std::string_view text);

// At most `columns` wide; what is cut off ends in "...". Never splits a code point.
std::string shorten(std::string_view text, size_t columns);

// The text with spaces up to `columns`.
std::string pad_right(std::string_view text, size_t columns);
std::string pad_left(std::string_view text, size_t columns);

// Breaks at spaces, so that no line is wider than `columns` unless one word is.
std::vector<std::string> wrap(std::string_view text, size_t columns);

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);
// The candidate that was most likely meant, or nothing when none is near.
std::string_view nearest(std::string_view typed, const std::vector<std::string_view>& candidates);

// "3s", "12m", "5h", "3d": the age of something `seconds` old.
std::string format_age(double seconds);

}  // namespace kvram::cli
