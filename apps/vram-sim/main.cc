#include "simgpu/sim_tool.h"

int main(int argc, char** argv) { return kvram::simgpu::run_tool(argc, argv); }
