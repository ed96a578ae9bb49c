// The command line's end of the daemon's socket: JSON requests, JSON replies put together from their chunks.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvram::node {

// One connection. Blocking; used by one thread. Moves, does not copy; closes on destruction.
class Client {
 public:
  // Connects to <run_dir>/node.sock. kNoDaemon when nobody listens there (a stale socket included), kNoPermission
  // when the socket's mode keeps this user out.
  static Result<Client> connect(const std::string& run_dir);

  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  // Sends one request (at most 32 KiB with its header; kDaemonProtocol beyond) and waits for the complete reply. An
  // {"error":{...}} reply comes back as an Error with the daemon's code and sentence. kDaemonGone when the connection
  // ends first.
  Result<std::string> request(std::string_view json);

  // For `run`: send once, then next() for each event. next() waits at most `timeout_ms` (-1: for ever); an empty string
  // is a timeout. EINTR is not an error: it counts as a timeout, so that a caller can look at its signals.
  Result<void> send(std::string_view json);
  Result<std::string> next(int timeout_ms);

  int fd() const { return fd_; }

 private:
  explicit Client(int fd) : fd_(fd) {}
  int fd_ = -1;
  uint64_t seq_ = 0;
  std::string partial_;  // chunks of a reply that is not complete
};

}  // namespace kvram::node
