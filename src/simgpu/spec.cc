#include "simgpu/spec.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

namespace kvram::simgpu {
namespace {

CatalogueEntry entry(const char* key, const char* name, uint64_t total, uint64_t reserve, Costs costs, int sms,
                     int major, int minor, int sm_clock, int memory_clock, int bus, int l2, int power, int idle,
                     int threads, int shared) {
  CatalogueEntry e;
  e.key = key;
  std::memset(&e.info, 0, sizeof e.info);
  std::snprintf(e.info.name, sizeof e.info.name, "%s", name);
  e.info.total_bytes = total;
  e.info.reserve_bytes = reserve;
  e.info.costs = costs;
  e.info.sms = sms;
  e.info.cc_major = major;
  e.info.cc_minor = minor;
  e.info.sm_clock_mhz = sm_clock;
  e.info.memory_clock_mhz = memory_clock;
  e.info.memory_bus_bits = bus;
  e.info.l2_bytes = l2;
  e.info.power_limit_w = power;
  e.info.idle_power_w = idle;
  e.info.threads_per_sm = threads;
  e.info.shared_per_sm_bytes = shared;
  return e;
}

// "rtx 6000-ada" and "RTX6000Ada" are the same model.
std::string folded(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '-' || c == '_' || c == ' ') continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string known_models() {
  std::string out;
  for (const CatalogueEntry& e : catalogue()) out += (out.empty() ? "" : ", ") + e.key;
  return out;
}

std::unexpected<Error> bad(std::string_view text, const std::string& why) {
  return fail(ErrorCode::kBadSimSpec, "'" + std::string(text.substr(0, 80)) + "' does not name simulated GPUs: " + why +
                                          " Write a list like 2xA10,1xH100-80GB.");
}

// The entry a model's name picks: the whole key, or the only key that begins with it.
const CatalogueEntry* find_model(std::string_view name) {
  const CatalogueEntry* found = nullptr;
  std::string wanted = folded(name);
  if (wanted.empty()) return nullptr;
  for (const CatalogueEntry& e : catalogue()) {
    std::string key = folded(e.key);
    if (key == wanted) return &e;
    if (!e.key.contains('-') || folded(e.key.substr(0, e.key.find('-'))) != wanted) continue;
    if (found != nullptr) return nullptr;
    found = &e;
  }
  return found;
}

// FNV-1a, then mixed: equal for equal model and index, in every run.
void make_uuid(const std::string& key, uint32_t index, uint8_t (&uuid)[16]) {
  uint64_t hash = 0xcbf29ce484222325ULL ^ index;
  for (char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  for (int half = 0; half < 2; ++half) {
    hash += 0x9e3779b97f4a7c15ULL;
    uint64_t z = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    std::memcpy(uuid + 8 * half, &z, 8);
  }
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x40);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
}

// Reads "2x" off the front of an item; 1 without it. 0 for a count that is no number from 1 to kMaxGpus.
uint32_t take_count(std::string_view* item) {
  size_t digits = 0;
  while (digits < item->size() && std::isdigit(static_cast<unsigned char>((*item)[digits])) != 0) ++digits;
  if (digits == 0 || digits >= item->size() || std::tolower((*item)[digits]) != 'x') return 1;
  uint32_t count = 0;
  for (size_t i = 0; i < digits && count <= kMaxGpus; ++i) count = count * 10 + static_cast<uint32_t>((*item)[i] - '0');
  item->remove_prefix(digits + 1);
  return count <= kMaxGpus ? count : 0;
}

}  // namespace

const std::vector<CatalogueEntry>& catalogue() {
  static const std::vector<CatalogueEntry>* const entries = new std::vector<CatalogueEntry>{
#define GPU(...) entry(__VA_ARGS__),
#include "gpu_catalogue.inc"
#undef GPU
  };
  return *entries;
}

Result<MachineSpec> parse_spec(std::string_view text) {
  MachineSpec spec;
  std::string_view rest = text;
  while (true) {
    size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (item.empty()) return bad(text, text.empty() ? "it is empty." : "an item of the list is empty.");
    std::string shown(item.substr(0, 40));
    uint32_t count = take_count(&item);
    const CatalogueEntry* model = find_model(item);
    if (model == nullptr) return bad(text, "'" + shown + "' is none of " + known_models() + ".");
    if (count == 0 || spec.gpus.size() + count > kMaxGpus) return bad(text, "a machine has 1 to 16 GPUs.");
    spec.text += (spec.text.empty() ? "" : ",") + std::to_string(count) + "x" + model->key;
    for (uint32_t i = 0; i < count; ++i) {
      GpuInfo info = model->info;
      auto index = static_cast<uint32_t>(spec.gpus.size());
      make_uuid(model->key, index, info.uuid);
      info.pci_bus = static_cast<int32_t>(index + 1);
      spec.gpus.push_back(info);
    }
    if (comma == std::string_view::npos) return spec;
    rest.remove_prefix(comma + 1);
  }
}

std::string uuid_text(const uint8_t (&uuid)[16]) {
  std::string out = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    constexpr char kHex[] = "0123456789abcdef";
    out += kHex[uuid[i] >> 4];
    out += kHex[uuid[i] & 15];
  }
  return out;
}

}  // namespace kvram::simgpu
