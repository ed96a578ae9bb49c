// Time on the simulated GPUs, shared by all processes of the machine (file `clock` in the folder of the simulation).
//
// A GPU serves the processes that have work outstanding in equal turns. In the limit of short turns each of n such
// processes proceeds at 1/n of the GPU's speed, and that limit is what is kept here: `v`, the nanoseconds of service
// that a process with work has had so far. Work is appended at a tag, a value of `v` at which it will be done; how late
// that is depends on who else comes and goes. Nothing runs in the background: whoever looks brings the state up to now.
// Streams of one process overlap; work in one stream does not. A process that dies gives up its turn.
//
// All functions: any thread, any process, robust against SIGKILL of a process inside; about 0.1 us.
#pragma once
#include <cstdint>

namespace kvram::simgpu {

// Nanoseconds of CLOCK_MONOTONIC.
uint64_t real_now_ns();

// A tag: a point in the service time of a GPU.
using Tag = uint64_t;

// Appends `gpu_ns` of work behind `after` (the end of the stream, or of what the work depends on), but not before now.
// Returns the tag at which it is done. gpu_ns = 0 gives the point itself. `now`, if not null, gets the present point: a
// tag that is not above it is done already.
Tag clock_append(uint32_t gpu, Tag after, uint64_t gpu_ns, Tag* now = nullptr);
// The present point: work with this tag or a smaller one is done.
Tag clock_now(uint32_t gpu);
bool clock_reached(uint32_t gpu, Tag tag);
// Real time at which a tag was reached, or now if it was not. Exact while fewer than 1,000 turns changed since.
uint64_t clock_reached_at(uint32_t gpu, Tag tag);
// Sleeps until the tag is reached; false when the GPU was lost meanwhile.
bool clock_wait(uint32_t gpu, Tag tag);

// Per cent of the last quarter to half second.
struct Utilisation {
  uint32_t gpu_percent;
  uint64_t busy_ns;  // since the simulation began
};
Utilisation clock_utilisation(uint32_t gpu);
// Per cent of the GPU's time that one process had lately, and since its start (ns); 0 where it had none.
struct ProcessShare {
  uint32_t percent;
  uint64_t service_ns;
};
ProcessShare clock_process_share(uint32_t gpu, uint32_t pid);
// Processes with work outstanding now.
uint32_t clock_active(uint32_t gpu);

}  // namespace kvram::simgpu
