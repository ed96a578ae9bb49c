#include "node/daemon_util.h"

#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/epoll.h>

#include <boost/json.hpp>
#include <cmath>

#include "lease/table.h"
#include "node/daemon.h"
#include "node/process.h"

namespace kvram::node {

namespace json = boost::json;

Result<void> watch_fd(int epoll, int fd, uint64_t token, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return fail(ErrorCode::kInternal, fmt::format("A descriptor cannot be watched: {}.", strerror(errno)));
}

uint64_t json_number(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return 0;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64()) return value->get_int64() > 0 ? static_cast<uint64_t>(value->get_int64()) : 0;
  if (value->is_double()) {
    double number = value->get_double();
    return number >= 1 && number < 9e18 ? static_cast<uint64_t>(number) : 0;
  }
  return 0;
}

std::string json_text(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

bool json_flag(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() && value->get_bool();
}

const std::string& cached_user(uint32_t uid) {
  static std::unordered_map<uint32_t, std::string> names;
  auto it = names.find(uid);
  if (it == names.end()) {
    if (names.size() > 4096) names.clear();
    it = names.emplace(uid, clean_text(user_name(uid), 64)).first;
  }
  return it->second;
}

std::string error_json(const Error& error) {
  json::object body{{"code", error_id(error.code)}, {"message", error.message}};
  return json::serialize(json::object{{"error", std::move(body)}});
}

}  // namespace kvram::node
