// libFuzzer target: a daemon and its ledger behind a real socket, in this process. Each input is a series of messages
// on fresh connections of a process that has a budget; after each the ledger's invariants must hold and an honest
// request must be answered.
#include <fmt/format.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "lease/wire.h"
#include "node/daemon.h"

namespace {

using namespace kvram;

class TwoGpus final : public gpu::Source {
 public:
  TwoGpus() {
    for (int i = 0; i < 2; ++i) {
      model::Gpu gpu;
      gpu.uuid[0] = static_cast<uint8_t>(i + 1);
      gpu.index = i;
      gpu.name = "fuzz";
      gpu.total = Bytes(64LL << 30);
      gpu.health = "ok";
      inventory_.gpus.push_back(gpu);
    }
  }
  const gpu::Inventory& inventory() const override { return inventory_; }
  Result<std::vector<gpu::Measurement>> measure() override {
    gpu::Measurement m;
    m.ok = true;
    m.health = "ok";
    m.free = Bytes(64LL << 30);
    return std::vector<gpu::Measurement>{m, m};
  }

 private:
  gpu::Inventory inventory_;
};

struct World {
  std::string folder;
  std::unique_ptr<node::Daemon> daemon;

  World() {
    char name[] = "/tmp/kvfuzz-XXXXXX";
    folder = mkdtemp(name);
    setenv("KUBE_VRAM_PREFIX", KV_FUZZ_PREFIX, 0);
    node::DaemonOptions options;
    options.run_dir = folder + "/r";
    options.state_dir = folder + "/s";
    options.sim = "fuzz";
    auto opened = node::Daemon::open(options, std::make_unique<TwoGpus>(), {});
    if (!opened) {
      fmt::print(stderr, "{}\n", opened.error().message);
      abort();
    }
    daemon = std::move(*opened);
    int fd = connect();
    control(fd, R"({"op":"run","memory":4294967296,"gpu":2})");
    turn();
    control(fd, R"({"op":"started","budget":1,"mode":"path"})");
    turn();
    close(fd);
    turn();
  }
  ~World() {
    daemon.reset();
    [[maybe_unused]] int status = system(("rm -rf " + folder).c_str());
  }

  void turn() const {
    for (int i = 0; i < 4; ++i) daemon->step(0);
  }
  int connect() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/r/node.sock", folder.c_str());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) abort();
    return fd;
  }
  static void control(int fd, const std::string& json) {
    lease::Header header{lease::kWireMagic,
                         lease::kWireVersion,
                         static_cast<uint16_t>(lease::MessageType::kControl),
                         static_cast<uint32_t>(sizeof(lease::Header) + json.size()),
                         0,
                         0,
                         1};
    std::string packet(reinterpret_cast<char*>(&header), sizeof header);
    packet += json;
    send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
  }
  static void hello(int fd) {
    lease::Hello m{};
    m.header = {
        lease::kWireMagic, lease::kWireVersion, static_cast<uint16_t>(lease::MessageType::kHello), sizeof m, 0, 0, 1};
    m.abi = lease::kAbiVersion;
    send(fd, &m, sizeof m, MSG_NOSIGNAL);
  }
  static bool drain(int fd) {
    char buffer[lease::kMaxMessage];
    ssize_t got = 0;
    bool any = false;
    while ((got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) any = true;
    return any;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  int fd = world.connect();
  while (size >= 3) {
    // {what, length:16, bytes}: bit 0 says hello first, bit 1 makes the header right, the rest is the type.
    uint8_t what = data[0];
    size_t length = std::min<size_t>(data[1] | data[2] << 8, size - 3);
    std::string packet(reinterpret_cast<const char*>(data + 3), length);
    data += 3 + length;
    size -= 3 + length;
    if ((what & 1) != 0) World::hello(fd);
    if ((what & 2) != 0) {
      packet.resize(std::max(packet.size(), sizeof(lease::Header)));
      lease::Header header{lease::kWireMagic,
                           lease::kWireVersion,
                           static_cast<uint16_t>(what >> 2),
                           static_cast<uint32_t>(packet.size()),
                           0,
                           0,
                           2};
      memcpy(packet.data(), &header, sizeof header);
    }
    send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
    world.turn();
    World::drain(fd);
    if (auto broken = world.daemon->check()) {
      fmt::print(stderr, "{}\n", *broken);
      abort();
    }
  }
  close(fd);
  world.turn();
  int honest = world.connect();
  World::control(honest, R"({"op":"status"})");
  world.turn();
  if (!World::drain(honest)) abort();  // the daemon no longer answers
  close(honest);
  world.turn();
  return 0;
}
