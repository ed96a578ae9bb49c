#include "cli/sim_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cli/json.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr size_t kMaxGpus = 16;

std::string folded(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c != '-' && c != '_' && c != ' ') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return out;
}

// How many models the word can mean; a whole name beats the beginnings of longer ones.
size_t meanings(const std::string& word, const std::vector<std::string>& keys) {
  std::string wanted = folded(word);
  size_t begins = 0;
  for (const std::string& key : keys) {
    if (folded(key) == wanted) return 1;
    size_t dash = key.find('-');
    if (dash != std::string::npos && folded(key.substr(0, dash)) == wanted) ++begins;
  }
  return begins;
}

}  // namespace

std::vector<std::string> expand_gpus(const std::string& gpus) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= gpus.size();) {
    size_t end = std::min(gpus.find(',', begin), gpus.size());
    std::string item = gpus.substr(begin, end - begin);
    size_t digits = std::min(item.find_first_not_of("0123456789"), item.size());
    long count = 1;
    if (digits > 0 && digits < 4 && digits < item.size() && item[digits] == 'x') {
      count = strtol(item.c_str(), nullptr, 10);
      item.erase(0, digits + 1);
    }
    out.insert(out.end(), static_cast<size_t>(count), item);
    begin = end + 1;
  }
  return out;
}

Result<void> check_gpus(const std::string& gpus, const std::string& catalogue) {
  Result<json::object> parsed = parse_object(catalogue);
  std::vector<std::string> keys;
  std::string list;
  if (parsed) {
    for (const json::value& v : array_at(*parsed, "gpus")) {
      if (!v.is_object()) continue;
      keys.push_back(text_at(v.get_object(), "key"));
      list += (list.empty() ? "" : ", ") + keys.back();
    }
  }
  if (keys.empty()) return {};
  std::vector<std::string> wanted = expand_gpus(gpus);
  if (wanted.empty() || wanted.size() > kMaxGpus) {
    return fail(ErrorCode::kBadSimSpec, fmt::format("{} is {} simulated GPUs; there can be 1 to {}.", printable(gpus),
                                                    wanted.size(), kMaxGpus));
  }
  for (const std::string& word : wanted) {
    size_t found = meanings(word, keys);
    if (found == 1) continue;
    return fail(ErrorCode::kBadSimSpec, fmt::format("'{}' is {} of the simulated GPUs. There are: {}.", printable(word),
                                                    found == 0 ? "none" : "more than one", list));
  }
  return {};
}

}  // namespace kvram::cli
