// The private mount namespace in which the guard lies over the driver's library.
#pragma once
#include <expected>
#include <string>
#include <vector>

namespace kvram::cli {

// One library: the guard, the place where the real one is kept in sight, and every path under which programs find it.
struct Cover {
  std::string guard;
  std::string stash;
  std::vector<std::string> paths;
};

// Moves this process, which must have one thread, into a mount namespace of its own: "/" made a slave of the old one,
// each real library bound to its stash, the guard bound over each of its paths. As root directly, else in a user
// namespace in which uid and gid stay what they are. The error says which step the system refused; mounts made until
// then are undone, and the process is as before but possibly in namespaces that look the same.
std::expected<void, std::string> enter_namespace(const std::vector<Cover>& covers);

}  // namespace kvram::cli
