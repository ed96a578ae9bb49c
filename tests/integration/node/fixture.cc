#include "fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace kvram::test {
namespace fs = std::filesystem;

TestNode::TestNode() {
  char name[] = "/tmp/kvn-XXXXXX";
  folder = mkdtemp(name);
  chmod(folder.c_str(), 0755);
  run_dir = folder + "/r/sim";
  state_dir = folder + "/s/sim";
  std::string prefix = getenv("KUBE_VRAM_PREFIX");
  fs::create_directories(folder + "/p/lib/kube-vram/sim");
  fs::create_directories(folder + "/sim");
  fs::create_symlink(prefix + "/lib/kube-vram/guard", folder + "/p/lib/kube-vram/guard");
  fs::create_symlink(KV_FAKE_NVML, folder + "/p/lib/kube-vram/sim/libnvidia-ml.so.1");
  std::ofstream(folder + "/p/lib/kube-vram/sim/libcuda.so.1") << "";
  figures("gpu 25769803776 536870912 NVIDIA Test 24GB\n");
}

TestNode::~TestNode() {
  if (pid_ > 0) terminate();
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

void TestNode::figures(const std::string& text) {
  std::ofstream(folder + "/sim/figures.new") << text;
  fs::rename(folder + "/sim/figures.new", folder + "/sim/figures");
}

pid_t TestNode::spawn(const std::vector<std::string>& options, const std::function<void()>& before) {
  std::string program = std::string(getenv("KUBE_VRAM_PREFIX")) + "/bin/vram-node";
  pid_t child = fork();
  if (child != 0) return child;
  setenv("KUBE_VRAM_PREFIX", (folder + "/p").c_str(), 1);
  setenv("KUBE_VRAM_RUN_DIR", (folder + "/r").c_str(), 1);
  setenv("KUBE_VRAM_STATE_DIR", (folder + "/s").c_str(), 1);
  setenv("KUBE_VRAM_SIM_DIR", (folder + "/sim").c_str(), 1);
  setenv("KUBE_VRAM_SIM", "1xTest", 1);
  int log = ::open((folder + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(log, STDERR_FILENO);
  if (before) before();
  std::vector<char*> argv = {const_cast<char*>("vram-node"), const_cast<char*>("--local")};
  for (const std::string& option : options) argv.push_back(const_cast<char*>(option.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

bool TestNode::start(const std::vector<std::string>& options, const std::function<void()>& before) {
  pid_ = spawn(options, before);
  for (int i = 0; i < 2000; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = -1;
      return false;
    }
    // A socket of an earlier daemon does not answer; this one's does.
    if (auto c = node::Client::connect(run_dir); c) {
      if (auto status = c->request(R"({"op":"status"})"); status) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

int TestNode::run_to_end(const std::vector<std::string>& options) {
  pid_t child = spawn(options, nullptr);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void TestNode::kill9() {
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int TestNode::terminate() {
  ::kill(pid_, SIGTERM);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

node::Client TestNode::client() {
  auto c = node::Client::connect(run_dir);
  EXPECT_TRUE(c.has_value()) << (c ? "" : c.error().message) << "\n" << said();
  if (!c) abort();
  return std::move(*c);
}

json::object TestNode::ask(const std::string& request) {
  auto reply = client().request(request);
  EXPECT_TRUE(reply.has_value()) << request << ": " << (reply ? "" : reply.error().message);
  return reply ? json::parse(*reply).as_object() : json::object();
}

Error TestNode::error_of(const std::string& request) {
  auto reply = client().request(request);
  EXPECT_FALSE(reply.has_value()) << request << ": " << (reply ? *reply : "");
  return reply ? Error{ErrorCode::kInternal, *reply} : reply.error();
}

json::object TestNode::budget(uint64_t id) {
  json::object list = ask(R"({"op":"list"})");
  for (const json::value& entry : list["budgets"].as_array()) {
    if (number(entry.as_object(), "budget") == id) return entry.as_object();
  }
  return {};
}

bool TestNode::eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::string TestNode::said() {
  std::ifstream file(folder + "/log");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Guarded::~Guarded() {
  disconnect();
  if (lease_fd >= 0) close(lease_fd);
  if (page != nullptr) munmap(const_cast<lease::GrantPage*>(page), lease::kGrantBytes);
  if (table != nullptr) munmap(table, lease::table_bytes(welcome.gpus));
}

void Guarded::disconnect() {
  if (fd >= 0) close(fd);
  fd = -1;
}

bool Guarded::connect(const std::string& run_dir) {
  disconnect();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/node.sock", run_dir.c_str());
  fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  return ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

bool Guarded::send(const void* data, size_t size, int pass_fd) {
  iovec part{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (pass_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* h = CMSG_FIRSTHDR(&message);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &pass_fd, sizeof pass_fd);
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

int Guarded::exchange(const lease::Hello& hello, int pass_fd) {
  if (!send(&hello, sizeof hello, pass_fd)) return -1;
  alignas(8) char buffer[1024];
  iovec part{buffer, sizeof buffer};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(64)];
  msghdr reply{};
  reply.msg_iov = &part;
  reply.msg_iovlen = 1;
  reply.msg_control = control;
  reply.msg_controllen = sizeof control;
  ssize_t got = recvmsg(fd, &reply, MSG_CMSG_CLOEXEC);
  if (got == static_cast<ssize_t>(sizeof(lease::Refuse))) {
    return static_cast<int>(reinterpret_cast<lease::Refuse*>(buffer)->code);
  }
  if (got != static_cast<ssize_t>(sizeof(lease::Welcome))) return -1;
  memcpy(&welcome, buffer, sizeof welcome);
  for (cmsghdr* h = CMSG_FIRSTHDR(&reply); h != nullptr; h = CMSG_NXTHDR(&reply, h)) {
    if (h->cmsg_type != SCM_RIGHTS) continue;
    int fds[2];
    memcpy(fds, CMSG_DATA(h), sizeof fds);
    if (table == nullptr) {
      lease_fd = fds[0];
      table = static_cast<uint64_t*>(
          mmap(nullptr, lease::table_bytes(welcome.gpus), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0));
    } else {
      close(fds[0]);
    }
    if (page == nullptr) {
      page = static_cast<const lease::GrantPage*>(mmap(nullptr, lease::kGrantBytes, PROT_READ, MAP_SHARED, fds[1], 0));
    }
    close(fds[1]);
  }
  return 0;
}

int Guarded::hello(bool observer) {
  auto m = message<lease::Hello>(lease::MessageType::kHello, ++seq_);
  m.abi = lease::kAbiVersion;
  m.observer = observer ? 1 : 0;
  return exchange(m, -1);
}

int Guarded::replay(uint64_t budget, uint32_t slot, int with_lease, uint64_t granted) {
  auto m = message<lease::Hello>(lease::MessageType::kHello, ++seq_);
  m.abi = lease::kAbiVersion;
  m.replay = 1;
  m.budget_id = budget;
  m.slot = slot;
  m.granted_units[0] = granted;
  return exchange(m, with_lease);
}

namespace {

lease::RefillReply reply_on(int fd) {
  lease::RefillReply reply{};
  if (recv(fd, &reply, sizeof reply, 0) != static_cast<ssize_t>(sizeof reply)) reply.status = 99;
  return reply;
}

}  // namespace

lease::RefillReply Guarded::refill(uint32_t gpu, uint64_t bytes, const char* call) {
  auto m = message<lease::Refill>(lease::MessageType::kRefill, ++seq_);
  m.gpu = gpu;
  m.need_units = lease::to_units(bytes);
  m.asked_bytes = bytes;
  snprintf(m.call, sizeof m.call, "%s", call);
  send(&m, sizeof m);
  return reply_on(fd);
}

lease::RefillReply Guarded::release_shared(uint32_t gpu, uint64_t bytes) {
  auto m = message<lease::ReleaseShared>(lease::MessageType::kReleaseShared, ++seq_);
  m.gpu = gpu;
  m.units = lease::to_units(bytes);
  send(&m, sizeof m);
  return reply_on(fd);
}

bool Guarded::spend(uint32_t gpu, uint64_t bytes) {
  return lease::spend(lease::word_at(table, welcome.gpus, welcome.slot, gpu), lease::to_units(bytes));
}
void Guarded::give_back(uint32_t gpu, uint64_t bytes) {
  lease::give_back(lease::word_at(table, welcome.gpus, welcome.slot, gpu), lease::to_units(bytes));
}
void Guarded::overcome(uint64_t oom) {
  auto m = message<lease::Overcome>(lease::MessageType::kOvercome, ++seq_);
  m.oom_id = oom;
  send(&m, sizeof m);
}
void Guarded::physical_oom(uint32_t gpu, uint64_t bytes) {
  auto m = message<lease::PhysicalOom>(lease::MessageType::kPhysicalOom, ++seq_);
  m.gpu = gpu;
  m.asked_bytes = bytes;
  snprintf(m.call, sizeof m.call, "cuMemCreate");
  send(&m, sizeof m);
}

bool Guarded::ended(int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  char byte[64];
  while (poll(&wait, 1, timeout_ms) == 1) {
    if (recv(fd, byte, sizeof byte, MSG_DONTWAIT) <= 0) return true;
  }
  return false;
}

Child::Child(const std::function<int(int, int)>& body) {
  int down[2];
  int up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) abort();
  pid = fork();
  if (pid == 0) {
    close(down[1]);
    close(up[0]);
    _exit(body(down[0], up[1]));
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
}
Child::~Child() {
  if (pid > 0) kill9();
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
}
char Child::hear() {
  char byte = 0;
  return read(from_, &byte, 1) == 1 ? byte : '\0';
}
void Child::tell(char byte) const { EXPECT_EQ(write(to_, &byte, 1), 1); }
int Child::end() {
  int status = 0;
  waitpid(pid, &status, 0);
  pid = -1;
  return status;
}
void Child::kill9() {
  kill(pid, SIGKILL);
  end();
}

uint64_t number(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<uint64_t>() : 0;
}

json::object run(node::Client& client, const std::string& rest) {
  EXPECT_TRUE(client.send("{\"op\":\"run\",\"command\":[\"./a\"]," + rest + "}").has_value());
  while (true) {
    auto text = client.next(10000);
    if (!text || text->empty()) {
      ADD_FAILURE() << "no answer to run " << rest;
      return {};
    }
    json::object event = json::parse(*text).as_object();
    if (event["event"] != "waiting") return event;
  }
}

uint64_t start_budget(TestNode& node, uint64_t memory, int gpus) {
  node::Client client = node.client();
  json::object granted = run(client, "\"memory\":" + std::to_string(memory) + ",\"gpu\":" + std::to_string(gpus));
  EXPECT_EQ(granted["event"], "granted") << json::serialize(granted);
  uint64_t id = number(granted, "budget");
  auto started =
      client.request("{\"op\":\"started\",\"mode\":\"path\",\"why\":\"a test\",\"budget\":" + std::to_string(id) + "}");
  EXPECT_TRUE(started.has_value());
  return id;
}

}  // namespace kvram::test
