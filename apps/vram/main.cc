#include "cli/app.h"

int main(int argc, char** argv) { return kvram::cli::run_program(argc, argv, KV_VERSION); }
