// Result<T>: a value or an Error. Errors are values; nothing in this project throws across a module.
#pragma once
#include <expected>
#include <string>
#include <utility>

#include "base/errors.h"

namespace kvram {

// What went wrong: a stable code of the table in errors.def and a sentence for a person (what was found, why that is a
// problem, what would work). Copyable, no hidden state, safe to pass between threads.
struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(ErrorCode code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace kvram
