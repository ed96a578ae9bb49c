// Whether colours are wanted: a terminal, no --no-color, no NO_COLOR (no-color.org), a TERM that is not dumb.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "cli/parse.h"

namespace kvram::cli {

inline bool colours_wanted(const Invocation& line) {
  const char* no_color = getenv("NO_COLOR");
  const char* term = getenv("TERM");
  bool refused = line.has("--no-color") || (no_color != nullptr && *no_color != 0);
  bool able = term != nullptr && *term != 0 && std::string_view(term) != "dumb";
  return !refused && able && isatty(STDOUT_FILENO) == 1;
}

}  // namespace kvram::cli
