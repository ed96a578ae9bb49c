#include "node/client.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <utility>

#include "lease/wire.h"
#include "node/paths.h"

namespace kvram::node {
namespace {

constexpr size_t kMaxReply = 64u << 20;  // of all chunks together

std::unexpected<Error> gone() {
  return fail(ErrorCode::kDaemonGone,
              "The daemon ended the connection before it answered. Running programs keep what they hold; try again.");
}

// The error in a reply, if it is one.
Result<std::string> as_result(std::string text) {
  if (!text.starts_with("{\"error\"")) return text;
  boost::system::error_code bad;
  boost::json::value value = boost::json::parse(text, bad);
  const boost::json::object* error = bad ? nullptr : value.as_object()["error"].if_object();
  if (error == nullptr) return text;
  const boost::json::value* code = error->if_contains("code");
  const boost::json::value* message = error->if_contains("message");
  if (code == nullptr || message == nullptr || !code->is_string() || !message->is_string()) return text;
  auto known = parse_error_id(std::string_view(code->get_string()));
  return fail(known.value_or(ErrorCode::kInternal), std::string(message->get_string()));
}

}  // namespace

Result<Client> Client::connect(const std::string& run_dir) {
  std::string path = socket_path(run_dir);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kRunFolder, fmt::format("The name of the socket, {}, is longer than the {} bytes that the "
                                                   "system allows. Choose a run folder with a shorter name.",
                                                   path, sizeof address.sun_path - 1));
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(ErrorCode::kInternal, fmt::format("No socket can be made: {}.", strerror(errno)));
  Client client(fd);
  int status = 0;
  do {
    status = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  } while (status != 0 && errno == EINTR);
  if (status == 0) return client;
  if (errno == EACCES || errno == EPERM) {
    return fail(
        ErrorCode::kDaemonPermission,
        fmt::format("The socket {} belongs to another user's daemon and its mode keeps uid {} out. Use your own "
                    "(unset KUBE_VRAM_RUN_DIR) or ask for the system's daemon.",
                    path, geteuid()));
  }
  return fail(ErrorCode::kNoDaemon,
              fmt::format("No daemon answers at {} ({}). `vram run` starts one by itself.", path, strerror(errno)));
}

Client::Client(Client&& other) noexcept { *this = std::move(other); }
Client& Client::operator=(Client&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(seq_, other.seq_);
  std::swap(partial_, other.partial_);
  return *this;
}
Client::~Client() {
  if (fd_ >= 0) close(fd_);
}

Result<void> Client::send(std::string_view json) {
  lease::Header header{};
  size_t length = sizeof header + json.size();
  if (length > lease::kMaxMessage) {
    return fail(
        ErrorCode::kDaemonProtocol,
        fmt::format("The request is {} bytes long; at most {} fit into one message.", length, lease::kMaxMessage));
  }
  header.magic = lease::kWireMagic;
  header.version = lease::kWireVersion;
  header.type = static_cast<uint16_t>(lease::MessageType::kControl);
  header.length = static_cast<uint32_t>(length);
  header.seq = ++seq_;
  std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
  packet += json;
  partial_.clear();
  ssize_t sent = 0;
  do {
    sent = ::send(fd_, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return gone();
  return {};
}

Result<std::string> Client::next(int timeout_ms) {
  std::string packet(lease::kMaxMessage, '\0');
  while (true) {
    pollfd wait{fd_, POLLIN, 0};
    int ready = poll(&wait, 1, timeout_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR)) return std::string();
    if (ready < 0) return gone();
    ssize_t got = recv(fd_, packet.data(), packet.size(), 0);
    if (got < 0 && errno == EINTR) return std::string();
    if (got <= 0) return gone();
    lease::Header header{};
    if (static_cast<size_t>(got) >= sizeof header) memcpy(&header, packet.data(), sizeof header);
    if (header.magic != lease::kWireMagic || header.version != lease::kWireVersion ||
        header.length != static_cast<size_t>(got) ||
        header.type != static_cast<uint16_t>(lease::MessageType::kControlReply)) {
      return fail(ErrorCode::kDaemonProtocol,
                  "The daemon's answer cannot be understood. It may be of another version: run "
                  "`vram daemon stop`, then try again.");
    }
    if (header.seq != seq_) continue;  // late answer to an earlier request
    partial_.append(packet, sizeof header, static_cast<size_t>(got) - sizeof header);
    if (partial_.size() > kMaxReply) return fail(ErrorCode::kDaemonProtocol, "The daemon's answer has no end.");
    if ((header.flags & lease::kFlagMore) == 0) return std::exchange(partial_, {});
  }
}

Result<std::string> Client::request(std::string_view json) {
  if (Result<void> sent = send(json); !sent) return std::unexpected(sent.error());
  while (true) {
    Result<std::string> reply = next(-1);
    if (!reply) return reply;
    if (!reply->empty()) return as_result(std::move(*reply));
  }
}

}  // namespace kvram::node
