// Finding the node's daemon, and starting one where there is none.
#pragma once
#include <string>

#include "base/result.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "node/client.h"

namespace kvram::cli {

// Which machine is meant: the real one or a simulated one.
struct Machine {
  bool simulated = false;
  std::string gpus;         // the list of --sim or KUBE_VRAM_SIM; empty: none was given
  bool gpus_asked = false;  // by the option, so that it has to match a running simulation
};

// From --sim and KUBE_VRAM_SIM. kBadSimSpec for a list that cannot be one.
Result<Machine> machine_of(const Invocation& line);

// Connects to the running daemon. kNoDaemon when there is none; never starts one.
Result<node::Client> connect(const Machine& machine);

// Connects, and starts a daemon for this user when none answers. Waits for its readiness for at most
// KUBE_VRAM_START_SECONDS (10): kDaemonStart with the daemon's last words. A list of --sim that is not that of the
// running simulation: kSpecMismatch.
Result<node::Client> connect_or_start(const Machine& machine);

// One request and its reply, parsed.
Result<json::object> ask(node::Client& client, const json::object& request);

// "1xA10" and "A10" are the same machine, so are "A10,A10" and "2xA10".
bool same_gpus(const std::string& a, const std::string& b);

}  // namespace kvram::cli
