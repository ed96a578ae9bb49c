// A table of text: columns as wide as their widest cell, two spaces between them, no space at the end of a line.
#pragma once
#include <string>
#include <vector>

namespace kvram::cli {

enum class Align : bool { kLeft, kRight };
struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);
  // Cells beyond the columns are dropped, missing ones are empty. Cells are made printable here.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // The titles and all rows, each line ended by a newline; lines wider than max_columns (0: no bound) are shortened.
  std::string text(size_t max_columns = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvram::cli
