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

std::map<std::string, lease::CostModel> load_catalogue() {
  std::map<std::string, lease::CostModel> models;
  std::ifstream file(prefix() + "/share/kube-vram/gpus.json");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  boost::system::error_code bad;
  json::value value = json::parse(text, bad);
  const json::object* root = bad ? nullptr : value.if_object();
  const json::value* gpus = root == nullptr ? nullptr : root->if_contains("gpus");
  if (gpus == nullptr || !gpus->is_array()) return models;
  for (const json::value& entry : gpus->get_array()) {
    const json::object* gpu = entry.if_object();
    const json::value* nested = gpu == nullptr ? nullptr : gpu->if_contains("costs");
    if (gpu == nullptr) continue;
    const json::object& costs = nested != nullptr && nested->is_object() ? nested->get_object() : *gpu;
    models[json_text(*gpu, "name")] = {
        json_number(costs, "context_bytes"),     json_number(costs, "green_context_bytes"),
        json_number(costs, "module_page_bytes"), json_number(costs, "stream_bytes"),
        json_number(costs, "graph_exec_bytes"),  json_number(costs, "pool_chunk_bytes")};
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
