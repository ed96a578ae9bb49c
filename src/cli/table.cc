#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "cli/text.h"

namespace kvram::cli {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(size_t max_columns) const {
  std::vector<size_t> widths;
  for (const Column& c : columns_) widths.push_back(display_width(c.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string out;
  auto add_line = [&](auto cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kRight ? pad_left(cell_of(i), widths[i]) : pad_right(cell_of(i), widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += (max_columns > 0 ? shorten(line, max_columns) : line) + "\n";
  };
  add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    add_line([&](size_t i) -> const std::string& { return row[i]; });
  }
  return out;
}

}  // namespace kvram::cli
