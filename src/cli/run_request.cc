#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "cli/run.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr int kMaxGpus = 16;
constexpr double kMaxWait = 30.0 * 86400;

Result<int> parse_gpus(std::string_view option, const std::string& text) {
  int n = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (status == std::errc() && end == text.data() + text.size() && n >= 1 && n <= kMaxGpus) return n;
  return fail(ErrorCode::kBadGpuCount, fmt::format("{} {} is not a number of GPUs: write a whole number from 1 to {}.",
                                                   option, printable(text), kMaxGpus));
}

double unit_seconds(char c) { return c == 's' ? 1 : c == 'm' ? 60 : c == 'h' ? 3600 : c == 'd' ? 86400 : 0; }

std::unexpected<Error> not_executable(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kCommandNotExecutable, fmt::format("{} cannot be executed: {}.", printable(path), why));
}

// What stands in the way of executing the file; empty: nothing.
std::string obstacle(const std::string& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return strerror(errno);
  if (S_ISDIR(facts.st_mode)) return "it is a folder";
  if (!S_ISREG(facts.st_mode)) return "it is no ordinary file";
  return access(path.c_str(), X_OK) == 0 ? "" : "it lacks the permission (chmod +x)";
}

bool exists(const std::string& path) {
  struct stat facts{};
  return stat(path.c_str(), &facts) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

Result<void> read_amounts(const Invocation& line, RunRequest* r) {
  if (std::optional<std::string> text = line.value("--memory")) {
    Result<Bytes> memory = parse_quantity(*text);
    if (!memory) return std::unexpected(memory.error());
    r->memory = *memory;
  }
  if (std::optional<std::string> text = line.value("--gpu")) {
    Result<int> gpus = parse_gpus("--gpu", *text);
    if (!gpus) return std::unexpected(gpus.error());
    r->gpus = *gpus;
  }
  if (std::optional<std::string> text = line.value("--card")) {
    Result<int> cards = parse_gpus("--card", *text);
    if (!cards) return std::unexpected(cards.error());
    r->cards = *cards;
  }
  if (std::optional<std::string> text = line.value("--wait")) {
    Result<double> wait = parse_duration(*text);
    if (!wait) return std::unexpected(wait.error());
    r->wait_s = *wait;
  }
  return {};
}

Result<void> check_together(const Invocation& line, const RunRequest& r) {
  if (r.memory && r.cards) {
    return fail(ErrorCode::kCardBesideMemory,
                "--card takes whole GPUs and --memory a part of them: give one of the two.");
  }
  if (!r.memory && line.has("--gpu")) {
    return fail(
        ErrorCode::kBadUsage,
        r.cards ? "--gpu spreads --memory over GPUs and has no place beside --card: --card alone says how many GPUs."
                : "--gpu spreads --memory over GPUs: say how much, as in --memory 40Gi --gpu 2.");
  }
  if (!r.memory && !r.cards) {
    return fail(ErrorCode::kBadUsage,
                "Say how much GPU memory the command gets: --memory 6Gi, or --card 1 for a whole GPU.");
  }
  if (r.command.empty()) {
    return fail(ErrorCode::kNoCommand,
                "There is no command to run. Write it after --, as in `vram run --memory 6Gi -- ./server`.");
  }
  return {};
}

}  // namespace

Result<double> parse_duration(const std::string& text) {
  double total = 0;
  size_t at = 0;
  bool sound = !text.empty();
  while (sound && at < text.size()) {
    double number = 0;
    auto [end, status] = std::from_chars(text.data() + at, text.data() + text.size(), number, std::chars_format::fixed);
    sound = status == std::errc() && text[at] != '-';
    if (!sound) break;
    at = static_cast<size_t>(end - text.data());
    bool plain = at == text.size() && text.find_first_not_of("0123456789.") == std::string::npos;
    double unit = plain ? 1 : at < text.size() ? unit_seconds(text[at]) : 0;
    sound = unit > 0;
    total += number * unit;
    if (!plain) ++at;
  }
  if (sound && total > 0 && total <= kMaxWait) return total;
  return fail(ErrorCode::kBadDuration,
              fmt::format("'{}' is no length of time that can be waited for: write 30s, 10m or 1h30m, "
                          "more than zero and at most 30d.",
                          printable(text)));
}

Result<std::string> find_command(const std::string& name) {
  if (name.empty()) return fail(ErrorCode::kCommandMissing, "The command is an empty word. Write its name after --.");
  if (name.find('/') != std::string::npos) {
    if (!exists(name)) {
      return fail(ErrorCode::kCommandMissing, fmt::format("{} does not exist.", printable(name)));
    }
    std::string why = obstacle(name);
    if (!why.empty()) return not_executable(name, why);
    return name;
  }
  const char* set = getenv("PATH");
  std::string path = set == nullptr ? "/bin:/usr/bin" : set;
  std::string blocked;
  for (size_t begin = 0; begin <= path.size();) {
    size_t end = std::min(path.find(':', begin), path.size());
    std::string folder = path.substr(begin, end - begin);
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (exists(file)) {
      if (obstacle(file).empty()) return file;
      if (blocked.empty()) blocked = file;
    }
    begin = end + 1;
  }
  if (!blocked.empty()) return not_executable(blocked, obstacle(blocked));
  return fail(ErrorCode::kCommandMissing, fmt::format("{} was not found in any folder of PATH.", printable(name)));
}

Result<RunRequest> run_request(const Invocation& line) {
  RunRequest r;
  r.command = line.arguments;
  r.strict = line.has("--strict");
  r.verbose = line.has("--verbose");
  const char* mode = getenv("KUBE_VRAM_MODE");
  std::string forced = mode == nullptr ? "" : mode;
  if (!forced.empty() && forced != "path" && forced != "namespace") {
    return fail(ErrorCode::kBadUsage,
                fmt::format("KUBE_VRAM_MODE={} is neither path nor namespace.", printable(forced)));
  }
  r.no_namespace = line.has("--no-namespace") || forced == "path";
  if (Result<void> read = read_amounts(line, &r); !read) return std::unexpected(read.error());
  if (Result<void> fits = check_together(line, r); !fits) return std::unexpected(fits.error());
  return r;
}

}  // namespace kvram::cli
