#include "cli/failure.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

std::string holder_text(const json::object& h) {
  Bytes held(int_at(h, "bytes"));
  if (h.if_contains("foreign_pid") != nullptr) {
    std::string name = text_at(h, "name");
    return fmt::format("foreign pid {}{}{} {}", int_at(h, "foreign_pid"), name.empty() ? "" : " ", printable(name),
                       format_human(held));
  }
  std::string who = printable(text_at(h, "user"));
  std::string command = shorten(printable(text_at(h, "command")), 40);
  std::string owner = command.empty() ? who : who.empty() ? command : who + ": " + command;
  return fmt::format("budget {} {}{}", int_at(h, "budget"), format_human(held),
                     owner.empty() ? "" : " (" + owner + ")");
}

}  // namespace

std::string detail_text(const json::value& detail) {
  if (!detail.is_object()) return "";
  std::string out;
  const json::array& gpus = array_at(detail.get_object(), "gpus");
  if (gpus.size() < 2) return out;  // the sentence has it all
  for (const json::value& v : gpus) {
    if (!v.is_object()) continue;
    const json::object& gpu = v.get_object();
    out += fmt::format("  GPU {}: {} free", int_at(gpu, "index"), format_human(Bytes(int_at(gpu, "free"))));
    bool first = true;
    for (const json::value& h : array_at(gpu, "holders")) {
      if (!h.is_object()) continue;
      out += (first ? "; held by " : ", ") + holder_text(h.get_object());
      first = false;
    }
    out += "\n";
  }
  return out;
}

std::string error_text(const Error& error, Format format, const json::value& detail) {
  const ErrorInfo& info = error_info(error.code);
  if (format == Format::kJson) {
    json::object object = {{"error",
                            {{"code", error_id(error.code)},
                             {"title", json::string(info.title)},
                             {"message", error.message},
                             {"exit_status", info.exit_status}}}};
    if (!detail.is_null()) object["detail"] = detail;
    return compact_json(object) + "\n";
  }
  // Where the machine can never give that much, it does not matter who holds what.
  bool room = error.code >= ErrorCode::kNoRoom && error.code < ErrorCode::kDriverMissing;
  std::string id = error_id(error.code);
  return fmt::format("vram: {}: {}\n{}vram: `vram explain {}` tells more\n", id, printable(error.message),
                     room ? detail_text(detail) : "", id);
}

int report(const Error& error, Format format, const json::value& detail) {
  write_all(STDERR_FILENO, error_text(error, format, detail));
  return error_info(error.code).exit_status;
}

Error error_of(const json::object& error) {
  return Error{parse_error_id(text_at(error, "code")).value_or(ErrorCode::kInternal), text_at(error, "message")};
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace kvram::cli
