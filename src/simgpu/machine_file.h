// Files of a simulated machine's folder: helpers of machine*.cc.
#pragma once
#include <string>

#include "base/result.h"
#include "simgpu/layout.h"

namespace kvram::simgpu {

// An open descriptor of `path` (read-write, created when missing, close-on-exec, never 0, 1 or 2: a program may have
// those closed and open them anew); -1: errno. The mode follows the folder's, so that a folder for several users works.
int open_shared(const std::string& path, int flags);
// The one descriptor of this process for the file `slots`, opened once and never closed.
int slots_descriptor(const std::string& folder);
// Makes the folder and its parents; an error sentence when it is not a folder that this user can write.
Result<void> make_folder(const std::string& folder);
// Maps the machine's file; null if there is none or it is not one of this version.
MachineFile* map_machine(const std::string& folder);
// Creates the file of a machine in place of whatever was there.
Result<MachineFile*> create_machine(const std::string& folder, const std::string& text, const GpuInfo* gpus,
                                    uint32_t count);
// Differs between any two programs that this machine runs at one time, exec included; equal in a forked child.
uint64_t image_token();
uint64_t process_start_time();

}  // namespace kvram::simgpu
