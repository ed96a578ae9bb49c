// Small helpers of the daemon's files.
#pragma once
#include <cstdint>
#include <string>

#include <boost/json/object.hpp>

#include "base/result.h"
#include "node/records.h"

namespace kvram::node {

enum class EventKind : uint64_t { kListener = 1, kConnection = 2, kDeath = 3, kTimer = 4, kSignal = 5 };
constexpr uint64_t event_token(EventKind kind, uint64_t id) { return static_cast<uint64_t>(kind) << 56 | id; }
constexpr EventKind event_kind(uint64_t token) { return static_cast<EventKind>(token >> 56); }
constexpr uint64_t event_id(uint64_t token) { return token & ((1ULL << 56) - 1); }

Result<void> watch_fd(int epoll, int fd, uint64_t token, uint32_t events);

// A member of a JSON object, or zero or nothing where it is missing, of another type or out of range.
uint64_t json_number(const boost::json::object& object, const char* key);
std::string json_text(const boost::json::object& object, const char* key);
bool json_flag(const boost::json::object& object, const char* key);

// The user's name, looked up once.
const std::string& cached_user(uint32_t uid);

// One line of the budgets' journal.
std::string budget_line(const BudgetRecord& record, const std::string& boot);

}  // namespace kvram::node
