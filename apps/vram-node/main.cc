// vram-node: the node ledger of one machine. Flags and wiring.
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "node/client.h"
#include "node/daemon.h"
#include "node/driver_files.h"
#include "node/paths.h"

namespace {

using kvram::Error;
using kvram::ErrorCode;
using kvram::Result;

constexpr char kHelp[] =
    "vram-node --local [options]\n"
    "  Keeps the account of this machine's GPU memory: budgets, what their programs hold, who waits.\n"
    "  --sim [LIST]      simulated GPUs instead of the real driver, for example 2xA10,1xH100-80GB (alone: 1xA10);\n"
    "                    KUBE_VRAM_SIM means the same\n"
    "  --run-dir DIR     socket, ledger and guard libraries (KUBE_VRAM_RUN_DIR; root: /run/kube-vram)\n"
    "  --state-dir DIR   journals of budgets and refusals (KUBE_VRAM_STATE_DIR; root: /var/lib/kube-vram)\n"
    "  --strict-watch    ends every budget that holds more than its limit, as `vram run --strict` does for one\n"
    "  --auto            ends by itself after ten minutes without budgets and connections\n"
    "  --version, --help\n";

struct Flags {
  bool local = false;
  bool automatic = false;
  bool strict = false;
  bool simulated = false;
  std::string sim;
  std::string run_dir;
  std::string state_dir;
};

int report(const Error& error) {
  fmt::print(stderr, "vram-node: {} ({})\n", error.message, kvram::error_id(error.code));
  return kvram::error_info(error.code).exit_status;
}

Result<Flags> parse(int argc, char** argv) {
  Flags flags;
  if (const char* named = getenv("KUBE_VRAM_SIM"); named != nullptr && *named != '\0') {
    flags.simulated = true;
    flags.sim = named;
  }
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    std::string* value = word == "--run-dir" ? &flags.run_dir : word == "--state-dir" ? &flags.state_dir : nullptr;
    if (value != nullptr) {
      if (i + 1 == argc || *argv[i + 1] == '\0') {
        return kvram::fail(ErrorCode::kBadUsage, fmt::format("{} needs a folder behind it.", word));
      }
      *value = argv[++i];
    } else if (word == "--sim" || word.starts_with("--sim=")) {
      flags.simulated = true;
      flags.sim = "1xA10";
      if (word.size() > 6) flags.sim = word.substr(6);
      if (word == "--sim" && i + 1 < argc && *argv[i + 1] != '-') flags.sim = argv[++i];
    } else if (word == "--local") {
      flags.local = true;
    } else if (word == "--auto") {
      flags.automatic = true;
    } else if (word == "--strict-watch") {
      flags.strict = true;
    } else {
      return kvram::fail(
          ErrorCode::kBadUsage,
          fmt::format("'{}' is no option of vram-node; `vram-node --help` lists them.", word.substr(0, 60)));
    }
  }
  if (!flags.local) {
    return kvram::fail(ErrorCode::kBadUsage, "Say --local: the ledger of one machine, without Kubernetes.");
  }
  return flags;
}

// The lock is taken: by a daemon for the same GPUs, or by one for others.
Error explain_second(const Error& error, const kvram::node::DaemonOptions& options) {
  auto client = kvram::node::Client::connect(options.run_dir);
  if (!client) return error;
  auto status = client->request(R"({"op":"status"})");
  boost::system::error_code bad;
  boost::json::value value = status ? boost::json::parse(*status, bad) : boost::json::value();
  const boost::json::object* o = bad ? nullptr : value.if_object();
  const boost::json::value* sim = o == nullptr ? nullptr : o->if_contains("sim");
  if (sim == nullptr || !sim->is_string() || std::string_view(sim->get_string()) == options.sim) return error;
  return {ErrorCode::kSpecMismatch,
          fmt::format(
              "The running simulation has {}, not {}. Leave --sim as it was, or end it first with `vram daemon stop`.",
              std::string_view(sim->get_string()), options.sim)};
}

int serve(const Flags& flags) {
  kvram::node::DaemonOptions options;
  options.run_dir = kvram::node::run_dir(flags.simulated, flags.run_dir);
  options.state_dir = kvram::node::state_dir(flags.simulated, flags.state_dir);
  options.sim = flags.sim;
  options.strict_watch = flags.strict;
  options.leave_when_idle = flags.automatic;
  std::string nvml = "libnvidia-ml.so.1";
  kvram::node::DriverFiles files;
  if (flags.simulated) {
    setenv("KUBE_VRAM_SIM", flags.sim.c_str(), 1);
    setenv("KUBE_VRAM_SIM_DIR", kvram::node::sim_dir().c_str(), 1);
    nvml = kvram::node::lib_dir() + "/sim/libnvidia-ml.so.1";
    files = kvram::node::simulated_driver_files();
  } else {
    files = kvram::node::find_driver_files();
  }
  auto source = kvram::gpu::open_nvml(nvml);
  if (!source) return report(source.error());
  auto daemon = kvram::node::Daemon::open(options, std::move(*source), files);
  if (!daemon) {
    Error error = daemon.error();
    if (error.code == ErrorCode::kSecondDaemon) error = explain_second(error, options);
    return report(error);
  }
  kvram::log::info("Daemon started", {{"socket", kvram::node::socket_path(options.run_dir)},
                                      {"simulated", flags.simulated ? flags.sim : "no"},
                                      {"version", KV_VERSION}});
  return (*daemon)->run();
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      fmt::print("{}", kHelp);
      return 0;
    }
    if (strcmp(argv[i], "--version") == 0) {
      fmt::print("vram-node {}\n", KV_VERSION);
      return 0;
    }
  }
  auto flags = parse(argc, argv);
  if (!flags) return report(flags.error());
  try {
    return serve(*flags);
  } catch (const std::exception& fault) {
    return report({ErrorCode::kInternal, fmt::format("vram-node met a fault: {}.", fault.what())});
  }
}
