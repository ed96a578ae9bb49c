// Logs of the daemons: one line of key/values on stderr, klog style: `I1130 22:30:01.123456 text key="value"`.
// Libraries return errors and do not log. Bounded: repeats of a message within a second are counted, not printed, and a
// line is cut at 2 KiB. Not thread-safe: one thread logs.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace kvram::log {

using Field = std::pair<std::string_view, std::string>;

void info(std::string_view text, std::initializer_list<Field> fields = {});
void warning(std::string_view text, std::initializer_list<Field> fields = {});
void error(std::string_view text, std::initializer_list<Field> fields = {});

}  // namespace kvram::log
