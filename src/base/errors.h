// The registry of errors, made from errors.def: stable codes, titles, exit statuses and long forms.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvram {

enum class ErrorCode : int {
#define KV_ERROR(name, number, exit_status, title, long_form) name = number,
#include "base/errors.def"
#undef KV_ERROR
};

struct ErrorInfo {
  ErrorCode code;
  std::string_view name;
  int exit_status;
  std::string_view title;
  std::string_view long_form;
};

// All rows, in the order of errors.def. Thread-safe (constant data).
std::span<const ErrorInfo> error_table();
// The row of a code; every code has one.
const ErrorInfo& error_info(ErrorCode code);
// "VRAM-1001".
std::string error_id(ErrorCode code);
// Accepts "VRAM-1001", "vram-1001" and "1001"; nothing for anything else.
std::optional<ErrorCode> parse_error_id(std::string_view text);

}  // namespace kvram
