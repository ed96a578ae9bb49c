#include "cli/json.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>

namespace kvram::cli {
namespace {

// Escapes what Boost.JSON leaves raw and a terminal would act on (DEL and C1 controls).
std::string quoted(std::string_view text) {
  std::string out;
  for (char c : json::serialize(json::string(text))) {
    if (c == 0x7f) {
      out += "\\u007f";
    } else if (!out.empty() && out.back() == '\xc2' && static_cast<unsigned char>(c) < 0xa0) {
      out.pop_back();
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out;
}

std::string scalar(const json::value& value) {
  if (value.is_string()) return quoted(value.get_string());
  if (value.is_double()) {
    double d = value.get_double();
    return std::isfinite(d) ? fmt::format("{}", d) : "null";
  }
  return json::serialize(value);
}

void write_json(const json::value& value, size_t depth, std::string* out) {
  std::string indent(2 * depth + 2, ' ');
  std::string close(2 * depth, ' ');
  if (value.is_object() && !value.get_object().empty()) {
    *out += "{\n";
    bool first = true;
    for (const auto& [key, item] : value.get_object()) {
      if (!first) *out += ",\n";
      first = false;
      *out += indent + quoted(key) + ": ";
      write_json(item, depth + 1, out);
    }
    *out += "\n" + close + "}";
  } else if (value.is_array() && !value.get_array().empty()) {
    *out += "[\n";
    bool first = true;
    for (const auto& item : value.get_array()) {
      if (!first) *out += ",\n";
      first = false;
      *out += indent;
      write_json(item, depth + 1, out);
    }
    *out += "\n" + close + "]";
  } else {
    *out += scalar(value);
  }
}

// Plain style only for words that no YAML reader takes for a number, a boolean, a date or markup.
bool plain_in_yaml(std::string_view text) {
  if (text.empty() || text.size() > 200) return false;
  bool letter = false;
  for (char c : text) {
    bool alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    letter = letter || alpha;
    bool digit = c >= '0' && c <= '9';
    if (!alpha && !digit && c != '-' && c != '_' && c != '/' && c != '.' && c != ' ') return false;
  }
  char first = text.front();
  bool begins = (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z') || first == '/';
  if (!letter || !begins || text.back() == ' ') return false;
  std::string lower;
  for (char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  for (std::string_view word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == word) return false;
  }
  return true;
}

std::string yaml_scalar(const json::value& value) {
  if (value.is_object()) return "{}";
  if (value.is_array()) return "[]";
  if (value.is_string() && plain_in_yaml(value.get_string())) return std::string(value.get_string());
  return scalar(value);
}

bool is_block(const json::value& v) {
  return (v.is_object() && !v.get_object().empty()) || (v.is_array() && !v.get_array().empty());
}

// Writes the entries of a mapping or sequence at `depth`; the first line's indent is already there.
void write_yaml(const json::value& value, size_t depth, std::string* out) {
  std::string indent(2 * depth, ' ');
  bool first = true;
  auto lead = [&] {
    if (!first) *out += indent;
    first = false;
  };
  if (value.is_array()) {
    for (const auto& item : value.get_array()) {
      lead();
      *out += "- ";
      if (is_block(item)) {
        write_yaml(item, depth + 1, out);
      } else {
        *out += yaml_scalar(item) + "\n";
      }
    }
    return;
  }
  for (const auto& [key, item] : value.get_object()) {
    lead();
    *out += plain_in_yaml(key) ? std::string(key) : quoted(key);
    if (is_block(item)) {
      *out += ":\n" + indent + "  ";
      write_yaml(item, depth + 1, out);
    } else {
      *out += ": " + yaml_scalar(item) + "\n";
    }
  }
}

const json::value* find(const json::object& o, std::string_view key) { return o.if_contains(key); }

}  // namespace

Result<json::object> parse_object(std::string_view text) {
  json::error_code failed;
  json::value value = json::parse(text, failed);
  if (failed || !value.is_object()) {
    return fail(ErrorCode::kDaemonProtocol,
                "The daemon's answer is not a JSON object. vram and vram-node may be of different versions.");
  }
  return std::move(value.get_object());
}

std::string pretty_json(const json::value& value) {
  std::string out;
  write_json(value, 0, &out);
  return out + "\n";
}

std::string compact_json(const json::value& value) { return json::serialize(value); }

std::string to_yaml(const json::value& value) {
  if (!is_block(value)) return yaml_scalar(value) + "\n";
  std::string out;
  write_yaml(value, 0, &out);
  return out;
}

int64_t int_at(const json::object& o, std::string_view key, int64_t fallback) {
  const json::value* v = find(o, key);
  if (v == nullptr) return fallback;
  if (v->is_int64()) return v->get_int64();
  if (v->is_uint64()) return v->get_uint64() > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v->get_uint64());
  return fallback;
}

double double_at(const json::object& o, std::string_view key, double fallback) {
  const json::value* v = find(o, key);
  if (v != nullptr && v->is_double()) return v->get_double();
  return v != nullptr && v->is_number() ? static_cast<double>(int_at(o, key)) : fallback;
}

bool bool_at(const json::object& o, std::string_view key) {
  const json::value* v = find(o, key);
  return v != nullptr && v->is_bool() && v->get_bool();
}

std::string text_at(const json::object& o, std::string_view key) {
  const json::value* v = find(o, key);
  return v != nullptr && v->is_string() ? std::string(v->get_string()) : "";
}

const json::array& array_at(const json::object& o, std::string_view key) {
  static const json::array kEmpty;
  const json::value* v = find(o, key);
  return v != nullptr && v->is_array() ? v->get_array() : kEmpty;
}

const json::object& object_at(const json::object& o, std::string_view key) {
  static const json::object kEmpty;
  const json::value* v = find(o, key);
  return v != nullptr && v->is_object() ? v->get_object() : kEmpty;
}

}  // namespace kvram::cli
