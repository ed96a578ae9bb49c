#include <fmt/format.h>

#include "cli/run.h"
#include "cli/show.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

Cover cover_of(const json::object& guard, const json::object& driver, std::string_view library) {
  Cover c;
  c.guard = text_at(guard, fmt::format("ns_{}", library));
  c.stash = text_at(guard, fmt::format("stash_{}", library));
  for (const json::value& path : array_at(driver, library)) {
    if (path.is_string()) c.paths.emplace_back(path.get_string());
  }
  return c;
}

}  // namespace

Grant parse_grant(const json::object& event) {
  Grant g;
  g.budget = int_at(event, "budget");
  g.simulated = bool_at(event, "simulated");
  const json::object& guard = object_at(event, "guard");
  const json::object& driver = object_at(event, "driver");
  g.covers = {cover_of(guard, driver, "cuda"), cover_of(guard, driver, "nvml")};
  std::erase_if(g.covers, [](const Cover& c) { return c.paths.empty(); });
  g.path_dir = text_at(guard, "path_dir");
  g.driver_dir = text_at(driver, "dir");
  for (const auto& [name, value] : object_at(event, "env")) {
    if (value.is_string()) g.environment.emplace_back(name, value.get_string());
  }
  g.event = event;
  return g;
}

std::string grant_line(const Grant& grant, const std::string& mode, const std::string& why) {
  Bytes sum;
  Bytes context;
  std::string gpus;
  for (const json::value& v : array_at(grant.event, "gpus")) {
    if (!v.is_object()) continue;
    const json::object& gpu = v.get_object();
    sum += Bytes(int_at(gpu, "limit"));
    context = std::max(context, Bytes(int_at(gpu, "context_reserve")));
    gpus +=
        fmt::format("{}GPU {} ({})", gpus.empty() ? "" : ", ", int_at(gpu, "index"), printable(text_at(gpu, "name")));
  }
  return fmt::format("vram: budget {}: {} on {}{}; a context takes {} of it; mode {}{}; past the guard: {}\n",
                     grant.budget, format_human(sum), grant.simulated ? "simulated " : "", gpus, format_human(context),
                     mode, why.empty() ? "" : " (" + printable(why) + ")", slips_past(mode));
}

std::string library_path(const std::string& folder, const char* before) {
  std::string old = before == nullptr ? "" : before;
  if (folder.empty()) return old;
  return old.empty() ? folder : folder + ":" + old;
}

}  // namespace kvram::cli
