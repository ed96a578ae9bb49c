#include "cli/top.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>

#include "cli/colour.h"
#include "cli/failure.h"
#include "cli/text.h"
#include "cli/top_view.h"

namespace kvram::cli {
namespace {

winsize screen_size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    size.ws_col = 80;
    size.ws_row = 24;
  }
  return size;
}

// The daemon's snapshot, over one connection that is made again when it breaks.
class Source {
 public:
  explicit Source(const Machine& machine) : machine_(machine) {}
  Result<json::object> get() {
    if (!client_) {
      Result<node::Client> client = first_ ? connect_or_start(machine_) : connect(machine_);
      if (!client) return std::unexpected(client.error());
      client_.emplace(std::move(*client));
      first_ = false;
    }
    Result<json::object> list = ask(*client_, {{"op", "list"}});
    if (!list) client_.reset();
    return list;
  }

 private:
  Machine machine_;
  std::optional<node::Client> client_;
  bool first_ = true;
};

// The terminal in full-screen mode: own screen, no echo, no cursor. Restores everything at the end.
class Screen {
 public:
  Screen() {
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP}) sigaddset(&set, s);
    sigprocmask(SIG_BLOCK, &set, &before_);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    keys_ = tcgetattr(STDIN_FILENO, &cooked_) == 0;
    enter();
  }
  ~Screen() {
    leave();
    close(signals_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const std::vector<std::string>& lines) {
    std::string out = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) out += (i > 0 ? "\r\n" : "") + lines[i] + "\x1b[K";
    write_all(STDOUT_FILENO, out + "\x1b[J");
  }

  // Waits; true when the user wants to leave.
  bool wait(double seconds) {
    pollfd fds[2] = {{signals_, POLLIN, 0}, {keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
    int ready = poll(fds, 2, static_cast<int>(seconds * 1000));
    if (ready <= 0) return false;
    if ((fds[1].revents & (POLLIN | POLLHUP)) != 0) {
      char key = 0;
      ssize_t n = read(STDIN_FILENO, &key, 1);
      if (n == 0 || (n < 0 && errno != EINTR)) return true;  // the terminal is gone
      if (key == 'q' || key == 'Q' || key == 3 || key == 4) return true;
    }
    signalfd_siginfo info{};
    if (read(signals_, &info, sizeof info) != sizeof info) return false;
    if (info.ssi_signo == SIGTSTP) suspend();
    return info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP;
  }

 private:
  void enter() {
    if (keys_) {
      termios raw = cooked_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 1;
      raw.c_cc[VTIME] = 0;
      tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    write_all(STDOUT_FILENO, "\x1b[?1049h\x1b[?25l");
  }
  void leave() {
    write_all(STDOUT_FILENO, "\x1b[?25h\x1b[?1049l");
    if (keys_) tcsetattr(STDIN_FILENO, TCSADRAIN, &cooked_);
  }
  void suspend() {
    leave();
    raise(SIGSTOP);
    enter();
  }

  sigset_t before_;
  int signals_ = -1;
  bool keys_ = false;
  termios cooked_{};
};

int run_screen(Source& source, Snapshot snapshot, double interval, bool colour) {
  Screen screen;
  std::string notice;
  while (true) {
    winsize size = screen_size();
    screen.draw(top_screen(snapshot, {size.ws_col, size.ws_row, colour, notice}));
    if (screen.wait(interval)) return 0;
    Result<json::object> list = source.get();
    notice = list ? "" : "the figures are old: " + list.error().message;
    if (list) snapshot = parse_snapshot(*list);
  }
}

std::string picture(const json::object& list, const Invocation& line, bool once, bool colour) {
  if (line.format() == Format::kJson) return once ? pretty_json(list) : compact_json(list) + "\n";
  if (line.format() == Format::kYaml) return (once ? "" : "---\n") + to_yaml(list);
  TopOptions options{80, 0, colour, ""};
  if (isatty(STDOUT_FILENO) == 1) options.columns = screen_size().ws_col;
  std::string out;
  for (const std::string& text : top_screen(parse_snapshot(list), options)) {
    size_t end = text.find_last_not_of(' ');
    out += text.substr(0, end == std::string::npos ? 0 : end + 1) + "\n";
  }
  return once ? out : out + "\n";
}

}  // namespace

Result<double> parse_interval(const std::string& text) {
  double seconds = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
  bool sound = status == std::errc() && end == text.data() + text.size() && seconds >= 0.1 && seconds <= 3600;
  if (sound) return seconds;
  return fail(ErrorCode::kBadUsage, fmt::format("--interval {} is not between 0.1 and 3600 seconds.", printable(text)));
}

int top_command(const Invocation& line) {
  Format format = line.format();
  Result<double> interval = parse_interval(line.value("--interval").value_or("1"));
  if (!interval) return report(interval.error(), format);
  Result<Machine> machine = machine_of(line);
  if (!machine) return report(machine.error(), format);
  Source source(*machine);
  Result<json::object> list = source.get();
  if (!list) return report(list.error(), format);
  bool once = line.has("--once");
  bool colour = colours_wanted(line);
  bool tables = format == Format::kTable || format == Format::kWide;
  if (!once && tables && isatty(STDOUT_FILENO) == 1)
    return run_screen(source, parse_snapshot(*list), *interval, colour);
  while (true) {
    if (!list) return report(list.error(), format);
    write_all(STDOUT_FILENO, picture(*list, line, once, colour));
    if (once) return 0;
    usleep(static_cast<useconds_t>(*interval * 1e6));
    list = source.get();
  }
}

}  // namespace kvram::cli
