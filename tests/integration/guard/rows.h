// One row for each accounting entry point: how to take memory through it, and how to give it back.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stand.h"

namespace kvram::test {

struct Row {
  std::string name;
  std::function<CUresult()> take;  // one call of `name`, after whatever that needs
  std::function<bool()> give;      // true: all released
  bool modelled = true;            // false: the simulated driver answers "not supported"
};

std::vector<Row> memory_rows();
std::vector<Row> implicit_rows();

}  // namespace kvram::test
