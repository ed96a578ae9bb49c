#include "model/gpu.h"

#include <fmt/format.h>

namespace kvram::model {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string uuid_text(const GpuUuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

bool parse_uuid(const std::string& text, GpuUuid& uuid) {
  GpuUuid parsed{};
  size_t digits = 0;
  size_t start = text.starts_with("GPU-") || text.starts_with("MIG-") ? 4 : 0;
  for (size_t i = start; i < text.size(); ++i) {
    if (text[i] == '-') continue;
    int value = hex_value(text[i]);
    if (value < 0 || digits >= 32) return false;
    parsed[digits / 2] = static_cast<uint8_t>(parsed[digits / 2] << 4 | value);
    ++digits;
  }
  if (digits != 32) return false;
  uuid = parsed;
  return true;
}

Bytes part_of(const Request& request) {
  int64_t gpus = request.gpus > 0 ? request.gpus : 1;
  int64_t part = request.memory.count() / gpus + (request.memory.count() % gpus != 0 ? 1 : 0);
  return part > INT64_MAX - kMiB.count() ? Bytes(INT64_MAX) : round_up(Bytes(part), kMiB);
}

}  // namespace kvram::model
