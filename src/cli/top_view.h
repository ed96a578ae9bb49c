// One frame of `vram top`: a pure function of the snapshot and the size of the screen.
#pragma once
#include <string>
#include <vector>

#include "cli/snapshot.h"

namespace kvram::cli {

struct TopOptions {
  size_t columns = 80;
  size_t rows = 24;  // 0: as many as needed (a pipe)
  bool colour = false;
  std::string notice;  // shown in the last line, such as why the figures are old
};

// Lines of at most `columns` visible characters and at most `rows` of them; what does not fit is counted in a last
// line. Each GPU is a bar with a legend where there is room, else one line.
std::vector<std::string> top_screen(const Snapshot& s, const TopOptions& options);

}  // namespace kvram::cli
