// Where things lie: the run folder (socket, ledger, guard folders), the state folder (journals) and the installation.
#pragma once
#include <string>

#include "base/result.h"

namespace kvram::node {

// <prefix> of the installation or build tree: KUBE_VRAM_PREFIX, else the folder above that of the running program.
std::string prefix();
std::string lib_dir();  // <prefix>/lib/kube-vram

constexpr char kSystemRunDir[] = "/run/kube-vram";

// The folder of the daemon's socket for this user. `chosen` (--run-dir) wins, then KUBE_VRAM_RUN_DIR, then
// /run/kube-vram for root, $XDG_RUNTIME_DIR/kube-vram, /tmp/kube-vram-<uid>. A simulated machine lives in /sim below
// it, so that it never meets the real one. Only names it, creates nothing.
std::string run_dir(bool simulated, const std::string& chosen = "");
std::string state_dir(bool simulated, const std::string& chosen = "");
std::string socket_path(const std::string& run_dir);

// Where a client looks: the system's daemon when its socket exists and the environment names no other folder, else the
// user's own.
std::string client_run_dir(bool simulated, const std::string& chosen = "");

// The folder with the simulated driver's shared state: KUBE_VRAM_SIM_DIR or /dev/shm/kube-vram-sim-<uid>.
std::string sim_dir();

// Creates the folder with its parents (mode for the last one) and checks that it belongs to this user and that nobody
// else can write it. kRunFolder otherwise.
Result<void> make_private_dir(const std::string& path, unsigned mode);

}  // namespace kvram::node
