// How errors reach a person or a program: always on standard error.
#pragma once
#include <string>

#include "base/result.h"
#include "cli/json.h"
#include "cli/parse.h"

namespace kvram::cli {

// "vram: VRAM-2001: sentence" and a line with the command that explains the code; with kJson one object
// {"error": {"code", "title", "message", "exit_status"}, "detail": ...} on one line.
std::string error_text(const Error& error, Format format, const json::value& detail = nullptr);

// Who holds what, one line a GPU, from the `detail` of a refused run; empty when there are not several GPUs.
std::string detail_text(const json::value& detail);

// Prints the error and returns its exit status.
int report(const Error& error, Format format, const json::value& detail = nullptr);

// {"code": "VRAM-2001", "message": "..."} of a reply; an unknown code becomes kInternal and keeps its sentence.
Error error_of(const json::object& error);

// Writes all of it to a descriptor; a reader that went away is no error.
void write_all(int fd, std::string_view text);

}  // namespace kvram::cli
