#include "cli/bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr int kPalette[] = {39, 208, 76, 170, 220, 45, 203, 105, 148, 214, 81, 177};  // of 256, apart from each other

bool is_budget(char mark) { return (mark >= 'A' && mark <= 'Z') || (mark >= '0' && mark <= '9') || mark == '*'; }

int colour_of(char mark) {
  size_t n = mark >= 'A' && mark <= 'Z' ? static_cast<size_t>(mark - 'A') : static_cast<size_t>(mark) + 2;
  return kPalette[n % std::size(kPalette)];
}

// `cells` times the mark, in its colour.
std::string run_of(char mark, bool used, size_t cells, bool colour) {
  if (cells == 0) return "";
  bool lower = is_budget(mark) && !used && mark >= 'A';
  char shown = lower ? static_cast<char>(mark + 32) : !used && is_budget(mark) ? ':' : mark;
  std::string text(cells, shown);
  if (!colour) return text;
  if (is_budget(mark)) {
    return used ? fmt::format("\x1b[38;5;16;48;5;{}m{}\x1b[0m", colour_of(mark), text)
                : fmt::format("\x1b[38;5;{}m{}\x1b[0m", colour_of(mark), text);
  }
  if (mark == '%') return fmt::format("\x1b[97;41m{}\x1b[0m", text);
  return fmt::format("\x1b[90m{}\x1b[0m", text);
}

}  // namespace

char letter_of(size_t n) {
  if (n < 26) return static_cast<char>('A' + n);
  return n < 36 ? static_cast<char>('0' + (n - 26)) : '*';
}

std::vector<size_t> apportion(const std::vector<Bytes>& amounts, Bytes whole, size_t cells) {
  std::vector<size_t> out(amounts.size());
  if (whole <= Bytes(0) || cells == 0) return out;
  size_t given = 0;
  std::vector<std::pair<double, size_t>> rests;
  double sum = 0;
  for (size_t i = 0; i < amounts.size(); ++i) {
    double amount = static_cast<double>(std::max(amounts[i], Bytes(0)).count());
    sum += amount;
    double exact = amount / static_cast<double>(whole.count()) * static_cast<double>(cells);
    out[i] = std::min(static_cast<size_t>(exact), cells);
    if (out[i] == 0 && amount > 0) out[i] = 1;
    given += out[i];
    rests.emplace_back(exact - static_cast<double>(out[i]), i);
  }
  double share = std::min(sum / static_cast<double>(whole.count()), 1.0);
  auto wanted = static_cast<size_t>(std::lround(share * static_cast<double>(cells)));
  std::sort(rests.rbegin(), rests.rend());
  for (size_t k = 0; given < wanted && !rests.empty(); k = (k + 1) % rests.size()) {
    ++out[rests[k].second];
    ++given;
  }
  while (given > wanted) {  // small amounts got a cell each: the largest pay for it
    auto largest = std::max_element(out.begin(), out.end());
    if (*largest == 0) break;
    --*largest;
    --given;
  }
  return out;
}

std::string draw_bar(const std::vector<Segment>& segments, Bytes whole, size_t cells, bool colour) {
  std::vector<Bytes> amounts;
  for (const Segment& s : segments) amounts.push_back(s.bytes);
  std::vector<size_t> widths = apportion(amounts, whole, cells);
  std::string out;
  size_t drawn = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    size_t used = is_budget(s.mark) ? apportion({std::min(s.used, s.bytes)}, s.bytes, widths[i])[0] : widths[i];
    out += run_of(s.mark, true, used, colour) + run_of(s.mark, false, widths[i] - used, colour);
    drawn += widths[i];
  }
  return out + std::string(cells - std::min(drawn, cells), ' ');
}

std::string draw_mark(char mark, bool colour) { return run_of(mark, true, 1, colour); }

std::vector<Segment> gpu_segments(const Snapshot& s, const GpuView& gpu) {
  std::vector<Segment> out;
  if (gpu.reserved > Bytes(0)) out.push_back({'#', gpu.reserved, gpu.reserved, "driver reserve"});
  if (gpu.foreign > Bytes(0)) out.push_back({'%', gpu.foreign, gpu.foreign, "foreign (outside kube-vram)"});
  for (size_t n = 0; n < s.budgets.size(); ++n) {
    const BudgetView& b = s.budgets[n];
    for (const Share& share : b.gpus) {
      if (share.index != gpu.index) continue;
      out.push_back({letter_of(n), share.limit, share.charged,
                     fmt::format("budget {}{}{}", b.id, b.command.empty() ? "" : ": ", printable(b.command))});
    }
  }
  if (gpu.free > Bytes(0)) out.push_back({'.', gpu.free, gpu.free, "free"});
  return out;
}

}  // namespace kvram::cli
