// What implicit memory costs: from the catalogue for simulated GPUs, a careful guess for real ones (true-up corrects
// it).
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <map>

#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/paths.h"

namespace kvram::node {
namespace {

namespace json = boost::json;

constexpr lease::CostModel kCareful = {512ULL << 20, 32ULL << 20, 2ULL << 20, 0, 0, 32ULL << 20};

// An entry's figure, or that of all GPUs.
uint64_t figure(const json::object& gpu, const json::object& defaults, const char* key, int shift) {
  return json_number(gpu.contains(key) ? gpu : defaults, key) << shift;
}

std::map<std::string, lease::CostModel> load_catalogue() {
  std::map<std::string, lease::CostModel> models;
  std::ifstream file(prefix() + "/share/kube-vram/gpus.json");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  boost::system::error_code bad;
  json::value value = json::parse(text, bad);
  const json::object* root = bad ? nullptr : value.if_object();
  const json::value* gpus = root == nullptr ? nullptr : root->if_contains("gpus");
  const json::value* shared = root == nullptr ? nullptr : root->if_contains("defaults");
  if (gpus == nullptr || !gpus->is_array()) return models;
  json::object defaults = shared != nullptr && shared->is_object() ? shared->get_object() : json::object();
  for (const json::value& entry : gpus->get_array()) {
    const json::object* gpu = entry.if_object();
    if (gpu == nullptr) continue;
    models[json_text(*gpu, "name")] = {
        figure(*gpu, defaults, "context_mib", 20),     figure(*gpu, defaults, "green_context_mib", 20),
        figure(*gpu, defaults, "module_page_kib", 10), figure(*gpu, defaults, "stream_kib", 10),
        figure(*gpu, defaults, "graph_exec_kib", 10),  figure(*gpu, defaults, "pool_chunk_mib", 20)};
  }
  return models;
}

}  // namespace

lease::CostModel cost_model(const std::string& gpu_name, bool simulated) {
  if (!simulated) return kCareful;
  static const std::map<std::string, lease::CostModel> catalogue = load_catalogue();
  auto it = catalogue.find(gpu_name);
  return it == catalogue.end() || it->second.context_bytes == 0 ? kCareful : it->second;
}

}  // namespace kvram::node
