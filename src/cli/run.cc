#include "cli/run.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/daemon.h"
#include "cli/failure.h"
#include "cli/text.h"
#include "cli/waiting.h"

namespace kvram::cli {
namespace {

struct Outcome {
  std::optional<Grant> grant;
  std::optional<Error> error;
  json::value detail;
  int signal = 0;
};

json::object request_json(const RunRequest& r) {
  json::array command;  // for display: the beginning is enough, and a request has to fit into one message
  size_t room = 4096;
  for (const std::string& word : r.command) {
    std::string shown = shorten(printable(std::string_view(word).substr(0, room)), room);
    command.emplace_back(shown);
    if (shown.size() + 1 >= room) break;
    room -= shown.size() + 1;
  }
  char* cwd = getcwd(nullptr, 0);
  json::object o = {{"op", "run"},
                    {"memory", nullptr},
                    {"gpu", r.gpus},
                    {"card", nullptr},
                    {"wait_s", nullptr},
                    {"strict", r.strict},
                    {"command", std::move(command)},
                    {"cwd", printable(cwd == nullptr ? "" : std::string_view(cwd).substr(0, 4096))}};
  free(cwd);
  if (r.memory) o["memory"] = r.memory->count();
  if (r.cards) o["card"] = *r.cards;
  if (r.wait_s) o["wait_s"] = *r.wait_s;
  return o;
}

// SIGINT, SIGTERM and SIGHUP as something to poll for, while the object lives.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now{};  // what the caller ignores (nohup, a script's background job) stays ignored
      if (sigaction(s, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&set, s);
    }
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Signals() {
    if (fd_ >= 0) close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_; }
  int take() const {
    signalfd_siginfo info{};
    return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_;
  int fd_ = -1;
};

// True when the event ends the wait.
bool take_event(const json::object& event, WaitingLine* line, Outcome* out) {
  std::string kind = text_at(event, "event");
  if (kind == "waiting") {
    line->update(int_at(event, "position"), text_at(event, "reason"));
    return false;
  }
  if (kind == "granted") {
    out->grant = parse_grant(event);
    return true;
  }
  const json::object& error = object_at(event, "error");
  if (error.empty()) {
    out->error = Error{ErrorCode::kDaemonProtocol, "The daemon answered with an event that this vram does not know."};
    return true;
  }
  out->error = error_of(error);
  if (const json::value* detail = event.if_contains("detail")) out->detail = *detail;
  return true;
}

// From the request to its end: granted, refused, or a signal.
Outcome ask_for_budget(node::Client& client, const RunRequest& request, WaitingLine* line) {
  Outcome out;
  Signals signals;
  if (Result<void> sent = client.send(compact_json(request_json(request))); !sent) {
    out.error = sent.error();
    return out;
  }
  while (true) {
    pollfd fds[2] = {{client.fd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    int ready = poll(fds, 2, line->interval_ms());
    if (ready > 0 && fds[1].revents != 0) {
      out.signal = signals.take();
      if (out.signal != 0) return out;
    }
    if (ready <= 0 || fds[0].revents == 0) {
      line->tick();
      continue;
    }
    Result<std::string> text = client.next(0);
    if (text && text->empty()) continue;
    Result<json::object> event = text ? parse_object(*text) : std::unexpected(text.error());
    if (!event) {
      out.error = event.error();
      return out;
    }
    if (take_event(*event, line, &out)) return out;
  }
}

int give_up(int signal, const RunRequest& request, Format format) {
  std::string asked =
      request.memory ? format_quantity(*request.memory) : fmt::format("{} whole GPUs", request.cards.value_or(0));
  report(Error{ErrorCode::kInterrupted, fmt::format("Gave up waiting for {} because of {}; nothing is reserved.", asked,
                                                    signal == SIGINT    ? "SIGINT (Ctrl-C)"
                                                    : signal == SIGTERM ? "SIGTERM"
                                                                        : "SIGHUP")},
         format);
  return 128 + signal;
}

// Puts the guard in front; gives the mode and why it is not "namespace".
std::string shield(const Grant& grant, bool no_namespace, std::string* why) {
  if (no_namespace) {
    *why = "asked for by --no-namespace or KUBE_VRAM_MODE";
  } else if (std::expected<void, std::string> own = enter_namespace(grant.covers)) {
    return "namespace";
  } else {
    *why = own.error();
  }
  return "path";
}

void set_environment(const Grant& grant, const std::string& mode) {
  for (const auto& [name, value] : grant.environment) setenv(name.c_str(), value.c_str(), 1);
  std::string folder = mode == "path" ? grant.path_dir : grant.driver_dir;
  std::string path = library_path(folder, getenv("LD_LIBRARY_PATH"));
  if (!path.empty()) setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

// Becomes the command; comes back only with the reason why that failed.
Error execute(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  int failed = errno;
  std::string why = failed == ENOENT ? "the interpreter that its first line names does not exist" : strerror(failed);
  if (failed == E2BIG) why = "its arguments and the environment are too long";
  return Error{ErrorCode::kCommandNotExecutable, fmt::format("{} cannot be executed: {}.", printable(command[0]), why)};
}

int start_command(node::Client& client, const RunRequest& request, const Grant& grant, Format format) {
  std::string why;
  std::string mode = shield(grant, request.no_namespace, &why);
  Result<json::object> ok = ask(client, {{"op", "started"}, {"budget", grant.budget}, {"mode", mode}, {"why", why}});
  if (!ok) return report(ok.error(), format);
  if (request.verbose) write_all(STDERR_FILENO, grant_line(grant, mode, why));
  set_environment(grant, mode);
  return report(execute(request.command), format);
}

}  // namespace

int run_command(const Invocation& line) {
  Format format = line.format();
  Result<RunRequest> request = run_request(line);
  if (!request) return report(request.error(), format);
  Result<Machine> machine = machine_of(line);
  if (!machine) return report(machine.error(), format);
  Result<std::string> program = find_command(request->command[0]);
  if (!program) return report(program.error(), format);
  Result<node::Client> client = connect_or_start(*machine);
  if (!client) return report(client.error(), format);
  WaitingLine progress(STDERR_FILENO, format == Format::kJson);
  Outcome outcome = ask_for_budget(*client, *request, &progress);
  progress.finish();
  if (outcome.signal != 0) return give_up(outcome.signal, *request, format);
  if (outcome.error) return report(*outcome.error, format, outcome.detail);
  return start_command(*client, *request, *outcome.grant, format);
}

}  // namespace kvram::cli
