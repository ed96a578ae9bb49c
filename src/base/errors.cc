#include "base/errors.h"

#include <array>
#include <cctype>
#include <charconv>

namespace kvram {
namespace {

constexpr std::array kTable = {
#define KV_ERROR(name, number, exit_status, title, long_form) \
  ErrorInfo{ErrorCode::name, #name, exit_status, title, long_form},
#include "base/errors.def"
#undef KV_ERROR
};

consteval bool table_is_sound() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    const ErrorInfo& row = kTable[i];
    if (static_cast<int>(row.code) < 1000 || static_cast<int>(row.code) > 9999) return false;
    if (row.exit_status < 1 || row.exit_status > 143) return false;
    if (row.title.empty() || row.long_form.size() < 40) return false;
    for (size_t k = 0; k < i; ++k) {
      if (kTable[k].code == row.code || kTable[k].title == row.title) return false;
    }
  }
  return true;
}
static_assert(table_is_sound(),
              "errors.def: a number or title is used twice, a status is no exit status, or a text is missing");

}  // namespace

std::span<const ErrorInfo> error_table() { return kTable; }

const ErrorInfo& error_info(ErrorCode code) {
  for (const ErrorInfo& row : kTable) {
    if (row.code == code) return row;
  }
  return error_info(ErrorCode::kInternal);
}

std::string error_id(ErrorCode code) { return "VRAM-" + std::to_string(static_cast<int>(code)); }

std::optional<ErrorCode> parse_error_id(std::string_view text) {
  constexpr std::string_view kPrefix = "VRAM-";
  if (text.size() > kPrefix.size()) {
    bool prefixed = true;
    for (size_t i = 0; i < kPrefix.size(); ++i) {
      prefixed = prefixed && std::toupper(static_cast<unsigned char>(text[i])) == kPrefix[i];
    }
    if (prefixed) text.remove_prefix(kPrefix.size());
  }
  int number = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  for (const ErrorInfo& row : kTable) {
    if (static_cast<int>(row.code) == number) return row.code;
  }
  return std::nullopt;
}

}  // namespace kvram
