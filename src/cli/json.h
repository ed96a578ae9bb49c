// Reading and writing JSON values for people and programs.
#pragma once
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvram::cli {

namespace json = boost::json;

// Object or kDaemonProtocol.
Result<json::object> parse_object(std::string_view text);

// Two spaces a level, one entry a line, a newline at the end. Integers stay integers.
std::string pretty_json(const json::value& value);
// Block style; strings that YAML would read as anything else are quoted.
std::string to_yaml(const json::value& value);

// Tolerant readers: the fallback where the entry is missing or of another type.
int64_t int_at(const json::object& o, std::string_view key, int64_t fallback = 0);
double double_at(const json::object& o, std::string_view key, double fallback = 0);
bool bool_at(const json::object& o, std::string_view key);
std::string text_at(const json::object& o, std::string_view key);
const json::array& array_at(const json::object& o, std::string_view key);
const json::object& object_at(const json::object& o, std::string_view key);

// One line; control characters come out as JSON escapes anyway.
std::string compact_json(const json::value& value);

}  // namespace kvram::cli
