// vram-sim: faults on demand, the state of the simulated machine, and a program outside kube-vram that holds memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvram::simgpu {

class Machine;

// The whole program. Exit status 0, 64 for what cannot be read, 1 for what could not be done (with a sentence on
// stderr).
int run_tool(int argc, char** argv);

// `show`: GPUs, processes, faults, calls that are not modelled; as text or JSON.
std::string describe_text(Machine& machine);
std::string describe_json(Machine& machine);

// `hold`: takes `bytes` on a GPU through the simulated driver, says so, and keeps them until a signal or until
// `seconds` have passed (0: no end). Returns an exit status.
int hold_memory(uint64_t bytes, int gpu, double seconds);

}  // namespace kvram::simgpu
