// The program `vram` behind its main().
#pragma once

namespace kvram::cli {

// Reads the command line, does it, and returns the exit status.
int run_program(int argc, char** argv, const char* version);

}  // namespace kvram::cli
